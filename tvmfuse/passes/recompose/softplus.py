"""``log(1 + exp(x))`` and its stable form -> ``relax.nn.softplus``; mish is made of it.

Before (ONNX importer of TVM; PyTorch's reference)::

    relu(x) + log(1 + exp(-abs(x)));     log(1 + exp(x))
"""

from __future__ import annotations

from tvm import relax

from ..rewriter import RewriteContext
from .match import both_orders, close, dtype_of, inner, is_call, is_float, same_type, scalar
from .readers import Readers
from .silu import negated


def recompose_softplus(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """Rewrite the root of either form, if what it is made of dies with it."""
    if not is_float(value):
        return None
    x = _of_sum(value, context) if is_call(value, "add") else _log_one_plus_exp(value, context)
    if x is None or not same_type(x, value) or not readers.die(value, [x], context):
        return None
    return relax.op.nn.softplus(x)


def _of_sum(value: relax.Call, context: RewriteContext) -> relax.Expr | None:
    """``x`` where ``value`` is ``relu(x) + softplus(-abs(x))``; the latter was rewritten before."""
    for rectified, tail in both_orders(value):
        relu, softplus = inner(rectified, context, "nn.relu"), inner(tail, context, "nn.softplus")
        if relu is None or softplus is None or float(softplus.attrs.beta) != 1.0:
            continue
        distance = negated(softplus.args[0], context)
        absolute = None if distance is None else inner(distance, context, "abs")
        if absolute is not None and absolute.args[0].same_as(relu.args[0]):
            return relu.args[0]
    return None


def _log_one_plus_exp(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``x`` where ``value`` is ``log(1 + exp(x))``."""
    total = inner(value.args[0], context, "add") if is_call(value, "log") else None
    if total is None:
        return None
    for one, power in both_orders(total):
        exponential = inner(power, context, "exp")
        if exponential is not None and close(scalar(one), 1.0, dtype_of(value)):
            return exponential.args[0]
    return None
