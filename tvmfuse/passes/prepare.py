"""Bring an imported module into the form that the planner reads: constants folded, no no-ops."""

from __future__ import annotations

import tvm
from tvm import relax

from ..options import Options
from .combine_siblings import combine_siblings
from .dataflow import as_dataflow
from .fold import fold_constants, scalar_fill
from .fold_affine import FOLD_AFFINE
from .layout import convert_layout
from .layout_views import cancel_around_view
from .recompose import recompose
from .rewriter import rewrite_module
from .simplify import SIMPLIFY
from .split_parts import slices_of_splits
from .transposed_conv import depth_to_space


def prepare(mod: tvm.IRModule, options: Options) -> tvm.IRModule:
    """Dataflow form, constants and affine chains folded, identities and dead code removed."""
    mod = as_dataflow(mod)
    clean = (fold_constants, scalar_fill, *SIMPLIFY)
    mod = rewrite_module(mod, clean)
    mod = recompose(mod)
    mod = rewrite_module(mod, (*clean, *FOLD_AFFINE))
    if options.layout:
        mod = convert_layout(rewrite_module(mod, (depth_to_space,)))
        mod = rewrite_module(mod, (cancel_around_view, *SIMPLIFY))
    mod = slices_of_splits(mod)
    mod = tvm.ir.transform.Sequential(
        [
            relax.transform.EliminateCommonSubexpr(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
    )(mod)
    return combine_siblings(mod) if options.combine_siblings else mod
