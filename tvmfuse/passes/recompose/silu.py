"""``x * sigmoid(x)`` and ``x / (1 + exp(-x))`` -> ``relax.nn.silu``; the sigmoid in it as well.

SiLU is of Elfwing et al., "Sigmoid-weighted linear units", Neural Networks 107 (2018).
"""

from __future__ import annotations

from tvm import relax

from ..rewriter import RewriteContext
from .gate import Gated, find_gated
from .match import both_orders, close, dtype_of, inner, is_call, is_float, same_type, scalar
from .polynomial import equals, polynomial
from .readers import Readers


def recompose_silu(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """``x * sigmoid(x) -> silu(x)``, in any order and across casts."""
    found = find_gated(value, context, ("sigmoid",), _is_silu)
    if found is None or not readers.die(value, found.leaves(context), context):
        return None
    return relax.op.nn.silu(found.x)


def _is_silu(found: Gated, context: RewriteContext) -> bool:
    dtype = dtype_of(found.root)
    argument = polynomial(found.gate.args[0], [found.x], context)
    return equals(argument, {(1,): 1.0}, dtype) and equals(
        found.outer(context), {(1, 1): 1.0}, dtype
    )


def recompose_sigmoid(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """``1 / (1 + exp(-x)) -> sigmoid(x)`` and ``x / (1 + exp(-x)) -> silu(x)``."""
    if not is_call(value, "divide") or not is_float(value):
        return None
    numerator, denominator = value.args
    total = inner(denominator, context, "add")
    if total is None or not same_type(denominator, value):
        return None
    for one, power in both_orders(total):
        exponential = inner(power, context, "exp")
        if exponential is None or not close(scalar(one), 1.0, dtype_of(value)):
            continue
        x = negated(exponential.args[0], context)
        if x is None or not same_type(x, value) or not readers.die(value, [x], context):
            return None
        if close(scalar(numerator), 1.0, dtype_of(value)):
            return relax.op.sigmoid(x)
        return relax.op.nn.silu(x) if numerator.same_as(x) else None
    return None


def negated(expr: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``x`` where ``expr`` is ``-x``, ``x * -1`` or ``0 - x``."""
    call = inner(expr, context, "negative", "multiply", "subtract")
    if call is None:
        return None
    for x in call.args:
        if scalar(x) is None and equals(
            polynomial(call, [x], context), {(1,): -1.0}, dtype_of(call)
        ):
            return x
    return None
