"""Softmax and log-softmax as exporters decompose them -> ``relax.nn.softmax``, ``nn.log_softmax``.

Before::

    e = exp(x - max(x, axis));  y = e / sum(e, axis)
    z = x - max(x, axis);       y = z - log(sum(exp(z), axis))
    y = log(softmax(x, axis))

The subtraction of the maximum may be missing: TVM's kernels subtract it themselves, which changes
only inputs for which the exponential overflowed.
"""

from __future__ import annotations

import tvm_ffi
from tvm import relax

from ..rewriter import RewriteContext
from .match import both_orders, close, dtype_of, inner, is_call, is_float, same_type, scalar
from .readers import Readers


def recompose_softmax(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """``exp(z) / sum(exp(z), axis) -> softmax(x, axis)``."""
    if not is_float(value):
        return None
    parts = _quotient(value, context)
    if parts is None:
        return None
    exponential, total = context.value(parts[0]), context.value(parts[1])
    axis = _axis(total, "sum")
    if not is_call(exponential, "exp") or axis is None:
        return None
    if not _same(total.args[0], parts[0], context):
        return None
    x = _without_max(exponential.args[0], axis, context)
    if not same_type(x, value) or not readers.die(value, [x], context):
        return None
    return relax.op.nn.softmax(x, axis)


def recompose_log_softmax(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """``z - log(sum(exp(z), axis)) -> log_softmax(x, axis)``; ``log(softmax(x))`` likewise."""
    if not is_float(value):
        return None
    if is_call(value, "log"):
        softmax = inner(value.args[0], context, "nn.softmax")
        if softmax is None:
            return None
        return relax.op.nn.log_softmax(softmax.args[0], int(softmax.attrs.axis))
    if not is_call(value, "subtract"):
        return None
    logarithm = context.value(value.args[1])
    total = context.value(logarithm.args[0]) if is_call(logarithm, "log") else None
    axis = _axis(total, "sum")
    if total is None or axis is None:
        return None
    exponential = context.value(total.args[0])
    if not is_call(exponential, "exp"):
        return None
    if not _same(exponential.args[0], value.args[0], context):
        return None
    x = _without_max(value.args[0], axis, context)
    if not same_type(x, value) or not readers.die(value, [x], context):
        return None
    return relax.op.nn.log_softmax(x, axis)


def _quotient(value: relax.Expr, context: RewriteContext) -> tuple[relax.Expr, relax.Expr] | None:
    """``(a, b)`` where ``value`` is ``a / b`` or ``a * (1 / b)``."""
    if is_call(value, "divide"):
        return value.args[0], value.args[1]
    if is_call(value, "multiply"):
        for a, inverse in both_orders(value):
            call = inner(inverse, context, "divide", "power")
            if call is None:
                continue
            if is_call(call, "divide") and close(scalar(call.args[0]), 1.0, dtype_of(value)):
                return a, call.args[1]
            if is_call(call, "power") and scalar(call.args[1]) == -1.0:
                return a, call.args[0]
    return None


def _axis(value: relax.Expr | None, operator: str) -> int | None:
    """The one axis of a reduction that keeps it, counted from the front."""
    if value is None or not is_call(value, operator) or not bool(value.attrs.keepdims):
        return None
    rank, axes = value.args[0].ty.ndim, value.attrs.axis
    axes = range(rank) if axes is None else [int(axis) % rank for axis in axes]
    return axes[0] if len(axes) == 1 else None


def _without_max(expr: relax.Expr, axis: int, context: RewriteContext) -> relax.Expr:
    """``x`` if ``expr`` is ``x - max(x, axis)``, else ``expr`` itself."""
    value = context.value(expr)
    if is_call(value, "subtract"):
        largest = context.value(value.args[1])
        if _axis(largest, "max") == axis and largest.args[0].same_as(value.args[0]):
            return value.args[0]
    return expr


def _same(a: relax.Expr, b: relax.Expr, context: RewriteContext) -> bool:
    """True for one variable, or for equal calls of the operators in question on equal arguments."""
    if a.same_as(b):
        return True
    x, y = context.value(a), context.value(b)
    return (
        is_call(x, "exp", "subtract", "max")
        and is_call(y, "exp", "subtract", "max")
        and x.op.same_as(y.op)
        and tvm_ffi.structural_equal(x.attrs, y.attrs)
        and all(_same(p, q, context) for p, q in zip(x.args, y.args, strict=True))
    )
