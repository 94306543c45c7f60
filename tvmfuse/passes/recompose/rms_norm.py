"""RMS norm (Zhang and Sennrich, NeurIPS 2019) as exporters decompose it -> ``relax.nn.rms_norm``.

Before::

    y = x * rsqrt(mean(x ** 2, axes) + eps);  z = weight * y

After::

    z = rms_norm(x, weight, axes, eps)
"""

from __future__ import annotations

from tvm import relax

from ..rewriter import RewriteContext
from .match import both_orders, dtype_of, inner, is_call, is_float, same_type
from .moments import along, filled, is_filled, mean_of, normalised, same_value, square_of
from .polynomial import uncast
from .readers import Readers


def recompose_rms_norm(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """``x / sqrt(mean(x * x) + eps) -> rms_norm(x, 1)``."""
    if not is_float(value):
        return None
    found = normalised(value, context)
    squares = None if found is None else mean_of(found.variance, context)
    if found is None or squares is None:
        return None
    base = square_of(squares[0], context)
    if base is None or not same_value(base, found.numerator, context):
        return None
    x, axes = found.numerator, squares[1]
    # The last axes, as every transformer has it: TVM's kernel is written for them.
    if axes != tuple(range(x.ty.ndim - len(axes), x.ty.ndim)) or not same_type(x, value):
        return None
    if not readers.die(value, [x, uncast(x, context)], context):
        return None
    ones = filled(1.0, [x.ty.shape.values[axis] for axis in axes], dtype_of(x))
    return None if ones is None else relax.op.nn.rms_norm(x, ones, list(axes), found.epsilon)


def absorb_weight(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """``weight * rms_norm(x, 1) -> rms_norm(x, weight)``."""
    if not is_call(value, "multiply") or not is_float(value):
        return None
    for norm, operand in both_orders(value):
        call = inner(norm, context, "nn.rms_norm")
        if call is None or not same_type(norm, value) or not is_filled(call.args[1], 1.0):
            continue
        axes = tuple(int(a) % value.ty.ndim for a in call.attrs.axes)
        weight = along(operand, value, axes, context)
        if weight is not None:
            return relax.Call(call.op, [call.args[0], weight], call.attrs)
    return None
