"""Layer norm as exporters decompose it -> ``relax.nn.layer_norm`` or ``relax.nn.instance_norm``.

Before (any of the variance and square-root spellings of ``moments``)::

    d = x - mean(x, axes);  y = d / sqrt(mean(d * d, axes) + eps);  z = y * gamma + beta

After::

    z = layer_norm(x, gamma, beta, axes, eps)

Done in three steps, each a rewrite of its own: the normalised value becomes a layer norm without
scale and shift, and the multiplication and the addition after it are absorbed.  Where the scale
runs along the channels and not along the normalised axes it is an instance norm (Ulyanov et al.,
2016), which the ONNX importer decomposes; layer norm is of Ba et al., 2016.
"""

from __future__ import annotations

from tvm import relax

from ..rewriter import RewriteContext
from .match import both_orders, dtype_of, inner, is_call, is_float, same_type
from .moments import (
    Axes,
    along,
    centred,
    filled,
    is_filled,
    mean_of,
    normalised,
    same_value,
    square_of,
)
from .polynomial import uncast
from .readers import Readers


def recompose_layer_norm(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """``(x - mean(x)) / sqrt(variance(x) + eps) -> layer_norm(x, 1, 0)``."""
    if not is_float(value):
        return None
    found = normalised(value, context)
    middle = None if found is None else centred(found.numerator, context)
    if found is None or middle is None:
        return None
    x, axes = middle
    if not same_type(x, value) or not _is_variance(found.variance, x, axes, context):
        return None
    if not readers.die(value, [x, uncast(x, context)], context):
        return None
    return _norm(x, axes, found.epsilon)


def _is_variance(expr: relax.Expr, x: relax.Expr, axes: Axes, context: RewriteContext) -> bool:
    """True for ``variance(x)``, ``mean((x - mean(x)) ** 2)`` and ``mean(x * x) - mean(x) ** 2``."""
    value = context.value(uncast(expr, context))
    if is_call(value, "variance"):
        rank = x.ty.ndim
        found = value.attrs.axis
        ours = range(rank) if found is None else sorted(int(a) % rank for a in found)
        return (
            bool(value.attrs.keepdims)
            and tuple(ours) == axes
            and same_value(value.args[0], x, context)
        )
    if is_call(value, "subtract"):
        squares, square = mean_of(value.args[0], context), square_of(value.args[1], context)
        if squares is None or square is None:
            return False
        mean, base = mean_of(square, context), square_of(squares[0], context)
        return (
            mean is not None
            and base is not None
            and squares[1] == mean[1] == axes
            and same_value(base, x, context)
            and same_value(mean[0], x, context)
        )
    squares = mean_of(expr, context)
    base = None if squares is None or squares[1] != axes else square_of(squares[0], context)
    middle = None if base is None else centred(base, context)
    return middle is not None and middle[1] == axes and same_value(middle[0], x, context)


def _norm(x: relax.Expr, axes: Axes, epsilon: float) -> relax.Expr | None:
    extents, dtype = list(x.ty.shape.values), dtype_of(x)
    # Over the whole image of each channel: what follows scales channels, not pixels.
    is_instance = len(extents) > 3 and axes == tuple(range(2, len(extents)))
    wanted = [extents[1]] if is_instance else [extents[axis] for axis in axes]
    ones, zeros = filled(1.0, wanted, dtype), filled(0.0, wanted, dtype)
    if ones is None or zeros is None:
        return None
    if is_instance:
        return relax.op.nn.instance_norm(x, ones, zeros, 1, list(axes), epsilon)
    return relax.op.nn.layer_norm(x, ones, zeros, list(axes), epsilon)


_NORMS = ("nn.layer_norm", "nn.instance_norm", "nn.group_norm")


def absorb_scale(value: relax.Expr, context: RewriteContext, readers: Readers) -> relax.Expr | None:
    """``layer_norm(x, 1, 0) * gamma -> layer_norm(x, gamma, 0)``."""
    return _absorb(value, context, "multiply")


def absorb_shift(value: relax.Expr, context: RewriteContext, readers: Readers) -> relax.Expr | None:
    """``layer_norm(x, gamma, 0) + beta -> layer_norm(x, gamma, beta)``."""
    return _absorb(value, context, "add")


def _absorb(value: relax.Expr, context: RewriteContext, operator: str) -> relax.Expr | None:
    if not is_call(value, operator) or not is_float(value):
        return None
    for norm, operand in both_orders(value):
        call = inner(norm, context, *_NORMS)
        if call is None or not same_type(norm, value) or not is_filled(call.args[2], 0.0):
            continue
        if operator == "multiply" and not is_filled(call.args[1], 1.0):
            continue
        is_layer = is_call(call, "nn.layer_norm")
        rank = value.ty.ndim
        axes = [int(a) % rank for a in call.attrs.axes] if is_layer else [1]
        vector = along(operand, value, tuple(axes), context)
        if vector is None:
            continue
        gamma, beta = call.args[1], call.args[2]
        gamma, beta = (vector, beta) if operator == "multiply" else (gamma, vector)
        return relax.Call(call.op, [call.args[0], gamma, beta], call.attrs)
    return None


def absorb_casts(value: relax.Expr, context: RewriteContext, readers: Readers) -> relax.Expr | None:
    """``astype(norm(astype(x, f32), 1, ..), f16) -> norm(x, 1, ..)`` for layer and RMS norm.

    TVM's kernels of both compute in float32 whatever the dtype of ``x``, so the result is the
    same; the scale that follows in float16 can then be absorbed.
    """
    if not is_call(value, "astype") or dtype_of(value) != "float16":
        return None
    call = inner(value.args[0], context, "nn.layer_norm", "nn.rms_norm")
    if call is None or dtype_of(call) != "float32":
        return None
    cast = context.value(call.args[0])
    if not is_call(cast, "astype") or dtype_of(cast.args[0]) != "float16":
        return None
    expected = (1.0, 0.0)
    if not all(is_filled(arg, v) for arg, v in zip(call.args[1:], expected, strict=False)):
        return None
    vectors = [
        filled(v, list(arg.ty.shape.values), "float16")
        for arg, v in zip(call.args[1:], expected, strict=False)
    ]
    return relax.Call(call.op, [cast.args[0], *vectors], call.attrs)
