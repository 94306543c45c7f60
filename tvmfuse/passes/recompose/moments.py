"""Means, squares and inverse deviations in the spellings of exporters: the parts of the norms."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ..rewriter import RewriteContext, constant, make_constant
from .match import both_orders, close, dtype_of, is_call, is_float, scalar, scaled, shifted
from .polynomial import uncast

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Normalised:
    """``numerator / sqrt(variance + epsilon)``."""

    numerator: relax.Expr
    variance: relax.Expr
    epsilon: float


def normalised(value: relax.Expr, context: RewriteContext) -> Normalised | None:
    """Read ``n / sqrt(v + e)``, ``n * rsqrt(v + e)``, ``n * (1 / sqrt(v + e))`` or with powers."""
    if is_call(value, "divide"):
        root = _root(context.value(value.args[1]), context, 0.5)
        return None if root is None else Normalised(value.args[0], *root)
    if is_call(value, "multiply"):
        for numerator, inverse in both_orders(value):
            root = _root(context.value(uncast(inverse, context)), context, -0.5)
            if root is not None:
                return Normalised(numerator, *root)
    return None


def _root(
    value: relax.Expr, context: RewriteContext, power: float
) -> tuple[relax.Expr, float] | None:
    """``(v, e)`` where ``value`` is ``(v + e) ** power`` for a power of 0.5 or -0.5."""
    if is_call(value, "sqrt" if power == 0.5 else "rsqrt"):
        return _with_epsilon(context.value(value.args[0]))
    if is_call(value, "power") and close(scalar(value.args[1]), power, "float32"):
        return _with_epsilon(context.value(value.args[0]))
    if is_call(value, "divide") and power == -0.5 and close(scalar(value.args[0]), 1.0, "float32"):
        return _root(context.value(value.args[1]), context, 0.5)
    return None


def _with_epsilon(value: relax.Expr) -> tuple[relax.Expr, float] | None:
    found = shifted(value)
    return found if found is not None and 0.0 <= found[1] < 1.0 else None


def mean_of(expr: relax.Expr, context: RewriteContext) -> tuple[relax.Expr, Axes] | None:
    """``(x, axes)`` where ``expr`` is the mean of ``x`` with the reduced axes kept as 1."""
    value = context.value(uncast(expr, context))
    if is_call(value, "mean"):
        return _reduced(value)
    factor = scaled(value)
    if factor is None:
        return None
    total = context.value(factor[0])
    found = _reduced(total) if is_call(total, "sum") else None
    if found is None or not isinstance(found[0].ty.shape, relax.ShapeExpr):
        return None
    extents = [found[0].ty.shape.values[axis] for axis in found[1]]
    if not all(hasattr(extent, "value") for extent in extents):
        return None
    count = math.prod(int(extent.value) for extent in extents)
    return found if close(factor[1] * count, 1.0, dtype_of(value)) else None


def _reduced(call: relax.Call) -> tuple[relax.Expr, Axes] | None:
    x = call.args[0]
    if not bool(call.attrs.keepdims) or x.ty.ndim < 1:
        return None
    axes = call.attrs.axis
    rank = x.ty.ndim
    return x, tuple(range(rank)) if axes is None else tuple(sorted(int(a) % rank for a in axes))


def square_of(expr: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``x`` where ``expr`` is ``x * x``, ``x ** 2`` or ``square(x)``."""
    value = context.value(uncast(expr, context))
    if is_call(value, "square"):
        return value.args[0]
    if is_call(value, "multiply") and value.args[0].same_as(value.args[1]):
        return value.args[0]
    if is_call(value, "power") and scalar(value.args[1]) == 2.0:
        return value.args[0]
    return None


def centred(expr: relax.Expr, context: RewriteContext) -> tuple[relax.Expr, Axes] | None:
    """``(x, axes)`` where ``expr`` is ``x - mean(x)``."""
    value = context.value(uncast(expr, context))
    if not is_call(value, "subtract"):
        return None
    found = mean_of(value.args[1], context)
    if found is None or not same_value(found[0], value.args[0], context):
        return None
    return value.args[0], found[1]


def same_value(a: relax.Expr, b: relax.Expr, context: RewriteContext) -> bool:
    """True if both are the same tensor up to casts between floating-point types."""
    return uncast(a, context).same_as(uncast(b, context))


def along(
    expr: relax.Expr, x: relax.Expr, axes: Axes, context: RewriteContext
) -> relax.Expr | None:
    """``expr`` as the affine operand of a norm of ``x`` over ``axes``: shape ``x.shape[axes]``.

    ``None`` if it varies along other axes.  Constants are reshaped here, a variable must have the
    shape already or be reshaped by a view of its own.
    """
    if not isinstance(expr.ty, relax.TensorType) or dtype_of(expr) != dtype_of(x):
        return None
    shapes = [tensor.ty.shape for tensor in (expr, x)]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return None
    rank, ours = x.ty.ndim, list(shapes[0].values)
    if len(ours) > rank:
        return None
    ours = [None] * (rank - len(ours)) + ours
    wanted = [shapes[1].values[axis] for axis in axes]
    for axis, extent in enumerate(ours):
        whole = extent is not None and str(extent) == str(shapes[1].values[axis])
        single = extent is None or (hasattr(extent, "value") and int(extent.value) == 1)
        if not (whole if axis in axes else single):
            return None
    if len(shapes[0].values) == len(wanted):
        return expr
    array = constant(expr)
    if array is not None:
        return make_constant(array.reshape([int(extent.value) for extent in wanted]))
    return context.emit(relax.op.reshape(expr, wanted))


def filled(value: float, extents: list[relax.Expr], dtype: str) -> relax.Expr | None:
    """A constant of ``extents`` for a norm that has no scale or shift; None for unknown extents."""
    if not all(hasattr(extent, "value") for extent in extents):
        return None
    return make_constant(np.full([int(extent.value) for extent in extents], value, dtype))


def is_filled(expr: relax.Expr, value: float) -> bool:
    """True if ``expr`` is a constant that has ``value`` everywhere."""
    array = constant(expr)
    return array is not None and is_float(expr) and bool(np.all(array == value))
