"""Drop ``x * 1``, ``x / 1``, ``x + 0`` and ``x - 0``: exporters write them for missing parameters.

``x + 0`` turns -0.0 into 0.0, which no operator of a model tells apart but division by it.
"""

from __future__ import annotations

from tvm import relax

from ..rewriter import RewriteContext
from .match import both_orders, is_call, is_float, same_type
from .moments import is_filled

_NEUTRAL = {"multiply": 1.0, "divide": 1.0, "add": 0.0, "subtract": 0.0}


def drop_neutral(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``op(x, neutral constant) -> x`` where that keeps the shape."""
    if not is_call(value, *_NEUTRAL) or not is_float(value):
        return None
    neutral = _NEUTRAL[value.op.name.removeprefix("relax.")]
    sides = both_orders(value) if is_call(value, "multiply", "add") else [tuple(value.args)]
    for x, other in sides:
        if is_filled(other, neutral) and same_type(x, value):
            return x
    return None
