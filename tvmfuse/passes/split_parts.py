"""Make slices of a split whose parts are all computed with: what reads a part then indexes it.

``split`` is one launch that copies its input, and its tuple can be in no kernel; a slice is index
arithmetic in the kernel that reads it::

    parts = split(x, 2, axis=-1);  y = silu(parts[0]) * parts[1]
    ->  a = strided_slice(x, 0, n);  b = strided_slice(x, n, 2 n);  y = silu(a) * b

A split that a part of leaves the function stays: as slices each such part would be its own launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op

from ..graph import used_variables
from ..shapes import static_shape
from .rewriter import Rewrite, RewriteContext, rewrite_module


def slices_of_splits(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with the splits whose parts are read by operators only made into slices."""
    kept: set[relax.Var] = set()
    for _, func in mod.functions_items():
        if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
            kept |= _kept(func)
    rewritten = rewrite_module(mod, (_slice_unless(kept),))
    return relax.transform.DeadCodeElimination()(rewritten)


def _kept(func: relax.Function) -> set[relax.Var]:
    """Variables of tuples of which something is read other than by an operator."""
    part_of: dict[relax.Var, relax.Var] = {}
    kept: set[relax.Var] = set(used_variables(func.body.body))
    for block in func.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var):
                part_of[binding.var] = value.tuple_value
                if not isinstance(binding.var, relax.DataflowVar):
                    kept.add(binding.var)
            elif not (isinstance(value, relax.Call) and isinstance(value.op, Op)):
                kept |= set(used_variables(value))
    return kept | {source for part, source in part_of.items() if part in kept}


def _slice_unless(kept: set[relax.Var]) -> Rewrite:
    def rewrite(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
        """``split(x)[i] -> strided_slice(x)``."""
        if not isinstance(value, relax.TupleGetItem) or value.tuple_value in kept:
            return None
        call = context.call(value.tuple_value, "relax.split")
        if call is None:
            return None
        source = call.args[0]
        axis = int(call.attrs.axis) % source.ty.ndim
        extents = static_shape(tuple(source.ty.shape.values)[axis : axis + 1])
        if extents is None:
            return None
        bounds = _bounds(call.attrs.indices_or_sections, extents[0])
        begin, end = bounds[value.index], bounds[value.index + 1]
        return relax.op.strided_slice(source, axes=[axis], begin=[begin], end=[end])

    return rewrite


def _bounds(sections: Any, extent: int) -> list[int]:
    """Where each part begins, and the end of the last."""
    if isinstance(sections, Sequence) or hasattr(sections, "__iter__"):
        return [0, *(int(index) for index in sections), extent]
    count = int(sections)
    step = -(-extent // count)
    return [min(step * i, extent) for i in range(count + 1)]
