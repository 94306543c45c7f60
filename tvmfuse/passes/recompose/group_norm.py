"""Group norm as exporters decompose it -> ``relax.nn.group_norm`` (Wu and He, ECCV 2018).

Before (the norm in the middle has been recomposed already)::

    g = reshape(x, [N, G, C / G * H * W]);  n = layer_norm(g, 1, 0);  y = reshape(n, [N, C, H, W])
    z = y * gamma + beta

After::

    z = group_norm(x, gamma, beta, G)

The scale and shift are absorbed by ``layer_norm.absorb_scale`` and ``absorb_shift``.
"""

from __future__ import annotations

from tvm import relax

from ..rewriter import RewriteContext
from .match import dtype_of, inner, is_call, is_float, same_type
from .moments import filled, is_filled
from .readers import Readers


def recompose_group_norm(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """``reshape(norm(reshape(x)), shape of x) -> group_norm(x, 1, 0)``."""
    if not is_call(value, "reshape") or not is_float(value):
        return None
    norm = inner(value.args[0], context, "nn.layer_norm", "nn.instance_norm")
    if norm is None or not is_filled(norm.args[1], 1.0) or not is_filled(norm.args[2], 0.0):
        return None
    # A view: it costs nothing if something else reads it as well.
    grouped = context.value(norm.args[0])
    if not is_call(grouped, "reshape") or not same_type(grouped.args[0], value):
        return None
    x = grouped.args[0]
    groups = _groups(x, grouped, [int(axis) for axis in norm.attrs.axes])
    if groups is None:
        return None
    channels = [x.ty.shape.values[1]]
    ones, zeros = filled(1.0, channels, dtype_of(x)), filled(0.0, channels, dtype_of(x))
    axes = list(range(2, x.ty.ndim))
    return relax.op.nn.group_norm(x, ones, zeros, groups, 1, axes, float(norm.attrs.epsilon))


def _groups(x: relax.Expr, grouped: relax.Call, axes: list[int]) -> int | None:
    """The number of groups, if each row that is normalised is one group of channels of ``x``."""
    if not isinstance(grouped.ty.shape, relax.ShapeExpr):
        return None
    ours, theirs = list(x.ty.shape.values), list(grouped.ty.shape.values)
    if len(ours) < 3 or len(theirs) < 3 or str(ours[0]) != str(theirs[0]):
        return None
    if sorted(axis % len(theirs) for axis in axes) != list(range(2, len(theirs))):
        return None
    if not hasattr(ours[1], "value") or not hasattr(theirs[1], "value"):
        return None
    channels, groups = int(ours[1].value), int(theirs[1].value)
    return groups if channels % groups == 0 else None
