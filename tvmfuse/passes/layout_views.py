"""Transposes around a flattened image that cancel once the image is channels-last.

Vision transformers flatten the image before attention and unfold it after.  Before::

    i = permute_dims(x, NHWC -> NCHW);  f = reshape(i, [N, C, H * W]);  y = permute_dims(f, 0 2 1)
    f = permute_dims(x, 0 2 1);  i = reshape(f, [N, C, H, W]);  y = permute_dims(i, NCHW -> NHWC)

After, as no element moves::

    y = reshape(x, [N, H * W, C])
    y = reshape(x, [N, H, W, C])
"""

from __future__ import annotations

import tvm_ffi
from tvm import relax

from .recompose.match import is_call
from .rewriter import RewriteContext

_VIEWS = ("reshape", "squeeze", "expand_dims", "flatten")


def cancel_around_view(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """Rewrite the second permute of the two chains above to a reshape of the first one's input."""
    if not is_call(value, "permute_dims"):
        return None
    view = context.value(value.args[0])
    if not is_call(view, *_VIEWS):
        return None
    first = context.value(view.args[0])
    if not is_call(first, "permute_dims") or not _channels_stay_apart(view):
        return None
    if not (_to_first(first) and _to_last(value)):
        return None
    if not isinstance(value.ty.shape, relax.ShapeExpr):
        return None
    return relax.op.reshape(first.args[0], value.ty.shape)


def _to_first(call: relax.Call) -> bool:
    """True for a permute that moves the last axis to second place: the channels."""
    rank = call.ty.ndim
    axes = None if call.attrs.axes is None else [int(axis) % rank for axis in call.attrs.axes]
    return rank > 2 and axes == [0, rank - 1, *range(1, rank - 1)]


def _to_last(call: relax.Call) -> bool:
    """True for the reverse: the second axis becomes the last."""
    rank = call.ty.ndim
    axes = None if call.attrs.axes is None else [int(axis) % rank for axis in call.attrs.axes]
    return rank > 2 and axes == [0, *range(2, rank), 1]


def _channels_stay_apart(view: relax.Call) -> bool:
    """True if the view keeps the batch and the channels and regroups only the pixels."""
    shapes = [tensor.ty.shape for tensor in (view.args[0], view)]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return False
    before, after = (list(shape.values) for shape in shapes)
    return (
        len(before) > 2
        and len(after) > 2
        and all(tvm_ffi.structural_equal(a, b) for a, b in zip(before[:2], after[:2], strict=True))
    )
