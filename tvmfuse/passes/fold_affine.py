"""Fold per-channel scales and shifts into the weights and bias of the operator before them.

Before::

    conv = conv2d(x, W);  a = add(conv, b);  m = multiply(a, s);  y = add(m, t)
    conv = conv2d(x, W);  y = batch_norm(conv, gamma, beta, mean, variance)[0]

After::

    y = add(conv2d(x, W * s), b * s + t)

The products are computed in float64 and rounded once.  Valid because the scale of an output
channel commutes with the sum over the input (Jacob et al., "Quantization and Training of Neural
Networks", CVPR 2018, section 3.2, for batch norm).  Only where the intermediate has one reader:
folding a shared convolution would compute it twice.
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.ir import Op

from .rewriter import RewriteContext, constant, make_constant

# Operator -> attribute with the weight's layout; the letter O is the output channel.
_CONVOLUTIONS = frozenset(
    f"relax.nn.{name}"
    for name in "conv1d conv2d conv3d conv1d_transpose conv2d_transpose conv3d_transpose".split()
)


def _is(value: relax.Expr, *names: str) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name in names


def _split(value: relax.Call) -> tuple[relax.Expr, np.ndarray] | None:
    """The variable and the constant operand of a commutative call with exactly one constant."""
    left, right = constant(value.args[0]), constant(value.args[1])
    if left is not None and right is None:
        return value.args[1], left
    if right is not None and left is None:
        return value.args[0], right
    return None


def _is_float(value: relax.Expr) -> bool:
    return isinstance(value.ty, relax.TensorType) and str(value.ty.dtype).startswith("float")


def _rounded(array: np.ndarray, like: relax.Expr) -> relax.Expr:
    return make_constant(array.astype(str(like.ty.dtype)))


def decompose_batch_norm(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``batch_norm(x, gamma, beta, mean, var)[0] -> x * scale + shift`` at inference."""
    if not isinstance(value, relax.TupleGetItem) or value.index != 0:
        return None
    norm = context.call(value.tuple_value, "relax.nn.batch_norm")
    if norm is None or norm.attrs.training:
        return None
    arrays = [constant(arg) for arg in norm.args[1:5]]
    if any(a is None for a in arrays):
        return None
    gamma, beta, mean, variance = (np.asarray(a, "float64") for a in arrays)
    scale = 1 / np.sqrt(variance + float(norm.attrs.epsilon))
    if norm.attrs.scale:
        scale = scale * gamma
    shift = -mean * scale
    if norm.attrs.center:
        shift = shift + beta
    x = norm.args[0]
    shape = [1] * x.ty.ndim
    shape[int(norm.attrs.axis)] = -1
    scaled = _emit_scaled(x, _rounded(scale.reshape(shape), x), context)
    return relax.op.add(scaled, _rounded(shift.reshape(shape), x))


def _emit_scaled(x: relax.Expr, scale: relax.Expr, context: RewriteContext) -> relax.Var:
    """Bind ``x * scale``, with the scale inside the weight of ``x`` where it can be."""
    product = context.normalize(relax.op.multiply(x, scale))
    # The walk does not come back to what is emitted here, so fold it now.
    for fold in (scale_into_weight, scale_before_shift):
        folded = fold(product, context)
        if folded is not None:
            return context.emit(folded)
    return context.emit(product)


def merge_additions(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``(x + c1) + c2 -> x + (c1 + c2)``."""
    return _merge(value, context, "relax.add", np.add)


def merge_scales(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``(x * c1) * c2 -> x * (c1 * c2)``."""
    return _merge(value, context, "relax.multiply", np.multiply)


def _merge(
    value: relax.Expr, context: RewriteContext, operator: str, combine: np.ufunc
) -> relax.Expr | None:
    if not _is(value, operator) or not _is_float(value):
        return None
    outer = _split(value)
    if outer is None or not context.used_once(outer[0]):
        return None
    inner_call = context.call(outer[0], operator)
    inner = _split(inner_call) if inner_call is not None else None
    if inner is None:
        return None
    merged = combine(inner[1].astype("float64"), outer[1].astype("float64"))
    if merged.size > max(inner[1].size, outer[1].size) or not np.isfinite(merged).all():
        return None
    if merged.ndim > inner[0].ty.ndim:
        return None
    return relax.Call(value.op, [inner[0], _rounded(merged, value)])


def scale_before_shift(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``(anchor + c1) * c2 -> anchor * c2 + c1 * c2``, so that the scale reaches the weights."""
    if not _is(value, "relax.multiply") or not _is_float(value):
        return None
    outer = _split(value)
    if outer is None or not context.used_once(outer[0]):
        return None
    inner_call = context.call(outer[0], "relax.add")
    inner = _split(inner_call) if inner_call is not None else None
    if inner is None or not context.used_once(inner[0]):
        return None
    if _scaled_weight(context.value(inner[0]), outer[1]) is None:
        return None
    shift = inner[1].astype("float64") * outer[1].astype("float64")
    scaled = _emit_scaled(inner[0], _rounded(outer[1], value), context)
    return relax.op.add(scaled, _rounded(shift, value))


def scale_into_weight(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``conv(x, W) * s -> conv(x, W * s)`` and ``matmul(x, W) * s -> matmul(x, W * s)``."""
    if not _is(value, "relax.multiply") or not _is_float(value):
        return None
    parts = _split(value)
    if parts is None or not context.used_once(parts[0]):
        return None
    anchor = context.value(parts[0])
    weight = _scaled_weight(anchor, parts[1])
    if weight is None:
        return None
    scaled = _rounded(weight, anchor.args[1])
    return relax.Call(anchor.op, [anchor.args[0], scaled, *anchor.args[2:]], anchor.attrs)


def _scaled_weight(anchor: relax.Expr, scale: np.ndarray) -> np.ndarray | None:
    """The anchor's constant weight times ``scale`` (float64), or None if that is not the same."""
    if not _is(anchor, *_CONVOLUTIONS, "relax.matmul"):
        return None
    weight = constant(anchor.args[1])
    if weight is None or not np.isfinite(scale).all():
        return None
    weight, scale = weight.astype("float64"), scale.astype("float64")
    if scale.size == 1:
        return weight * scale.reshape(())
    if anchor.op.name == "relax.matmul":
        if weight.ndim != 2 or scale.size != scale.shape[-1] or scale.size != weight.shape[1]:
            return None
        return weight * scale.reshape(1, -1)
    # Grouped transposed convolutions number output channels per group in the weight.
    if "transpose" in anchor.op.name.rsplit("_", 1)[-1] and int(anchor.attrs.groups) != 1:
        return None
    channel = str(anchor.attrs.out_layout or anchor.attrs.data_layout).index("C")
    aligned = (1,) * (anchor.ty.ndim - scale.ndim) + scale.shape
    axis = str(anchor.attrs.kernel_layout).index("O")
    if len(aligned) != anchor.ty.ndim or any(
        extent != 1 for i, extent in enumerate(aligned) if i != channel
    ):
        return None
    if scale.size != weight.shape[axis]:
        return None
    shape = [1] * weight.ndim
    shape[axis] = -1
    return weight * scale.reshape(shape)


FOLD_AFFINE = (
    decompose_batch_norm,
    scale_into_weight,
    merge_scales,
    merge_additions,
    scale_before_shift,
)
