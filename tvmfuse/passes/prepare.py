"""Bring an imported module into the form that the planner reads: constants folded, no no-ops."""

from __future__ import annotations

import tvm
from tvm import relax

from ..options import Options
from .combine_siblings import combine_siblings
from .fold import fold_constants, scalar_fill
from .fold_affine import FOLD_AFFINE
from .rewriter import rewrite_module
from .simplify import SIMPLIFY


def prepare(mod: tvm.IRModule, options: Options) -> tvm.IRModule:
    """Dataflow form, constants and affine chains folded, identities and dead code removed."""
    mod = tvm.ir.transform.Sequential(
        [
            relax.transform.Normalize(),
            relax.transform.ConvertToDataflow(),
            relax.transform.CanonicalizeBindings(),
        ]
    )(mod)
    mod = rewrite_module(mod, (fold_constants, scalar_fill, *SIMPLIFY, *FOLD_AFFINE))
    mod = tvm.ir.transform.Sequential(
        [
            relax.transform.EliminateCommonSubexpr(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
    )(mod)
    return combine_siblings(mod) if options.combine_siblings else mod
