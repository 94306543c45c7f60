"""How operators whose attributes number axes read NHWC operands: handlers of ``layout_operators``.

Each gets the call as the model wrote it (NCHW) and returns the same call on channels-last
operands, or ``None`` if there is no such call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tvm import relax

# Axis of NCHW -> axis of NHWC.
AXIS = (0, 3, 1, 2)


class Operands(Protocol):
    """What a handler asks of the walk."""

    def last(self, expr: relax.Expr) -> relax.Expr:
        """The channels-last form of an operand."""

    def items(self, expr: relax.Expr) -> list[relax.Expr]:
        """The channels-last forms of the tensors of a tuple operand."""


def prelu(call: relax.Call, operands: Operands) -> relax.Expr | None:
    """Its slope has one axis, so only the number of that axis changes."""
    if call.ty.ndim != 4:
        return None
    axis = AXIS[int(call.attrs.axis) % 4]
    return relax.op.nn.prelu(operands.last(call.args[0]), call.args[1], axis)


def reduction(
    reduce: Callable[..., relax.Expr], call: relax.Call, operands: Operands
) -> relax.Expr | None:
    """Sum, mean, ... over any axes."""
    if call.args[0].ty.ndim != 4:
        return None
    axes = call.attrs.axis
    reduced = range(4) if axes is None else [int(a) % 4 for a in axes]
    keepdims = bool(call.attrs.keepdims)
    kept = [AXIS[axis] for axis in range(4) if axis not in reduced]
    # Without keepdims the result has no layout: both orders must leave the same axes.
    if not keepdims and kept != sorted(kept):
        return None
    return reduce(operands.last(call.args[0]), sorted(AXIS[a] for a in reduced), keepdims)


def softmax(
    operator: Callable[..., relax.Expr], call: relax.Call, operands: Operands
) -> relax.Expr | None:
    """Softmax or log-softmax over any axis."""
    if call.ty.ndim != 4:
        return None
    return operator(operands.last(call.args[0]), AXIS[int(call.attrs.axis) % 4])


def concat(call: relax.Call, operands: Operands) -> relax.Expr | None:
    """Along any axis."""
    if call.ty.ndim != 4 or call.attrs.axis is None:
        return None
    return relax.op.concat(operands.items(call.args[0]), AXIS[int(call.attrs.axis) % 4])


def split(call: relax.Call, operands: Operands) -> relax.Expr | None:
    """Along any axis; the walk knows that the fields of the tuple are channels-last."""
    if call.args[0].ty.ndim != 4 or not isinstance(call.ty, relax.TupleType):
        return None
    parts = call.attrs.indices_or_sections
    parts = (
        int(parts) if hasattr(parts, "value") or isinstance(parts, int) else [int(p) for p in parts]
    )
    return relax.op.split(operands.last(call.args[0]), parts, AXIS[int(call.attrs.axis) % 4])


def slice_(call: relax.Call, operands: Operands) -> relax.Expr | None:
    """Of any axes, if the call says which."""
    if call.ty.ndim != 4 or not isinstance(call.args[1], relax.Tuple):
        return None
    axes = [AXIS[int(a.value) % 4] for a in call.args[1].fields]
    return relax.op.strided_slice(
        operands.last(call.args[0]),
        axes,
        *call.args[2:],
        assume_inbound=bool(call.attrs.assume_inbound),
    )


def pad(call: relax.Call, operands: Operands) -> relax.Expr | None:
    """With a constant, any axes."""
    # The other modes are written for the last axes.
    if call.ty.ndim != 4 or str(call.attrs.pad_mode) != "constant":
        return None
    widths = [int(w) for w in call.attrs.pad_width]
    pairs = [widths[2 * axis : 2 * axis + 2] for axis in (0, 2, 3, 1)]
    return relax.op.nn.pad(
        operands.last(call.args[0]),
        [width for pair in pairs for width in pair],
        "constant",
        float(call.attrs.pad_value),
    )


def batch_norm(call: relax.Call, operands: Operands) -> relax.Expr | None:
    """Where it could not be folded; its statistics stay as they are."""
    if call.args[0].ty.ndim != 4:
        return None
    attrs = call.attrs
    return relax.op.nn.batch_norm(
        operands.last(call.args[0]),
        *call.args[1:],
        axis=AXIS[int(attrs.axis) % 4],
        epsilon=float(attrs.epsilon),
        center=bool(attrs.center),
        scale=bool(attrs.scale),
        momentum=float(attrs.momentum),
        training=bool(attrs.training),
    )


def layer_norm(call: relax.Call, operands: Operands) -> relax.Expr | None:
    """Over the channels only: its scale has one axis, which no layout permutes."""
    if call.ty.ndim != 4 or [int(axis) % 4 for axis in call.attrs.axes] != [1]:
        return None
    return relax.op.nn.layer_norm(
        operands.last(call.args[0]),
        *call.args[1:],
        axes=[AXIS[1]],
        epsilon=float(call.attrs.epsilon),
        center=bool(call.attrs.center),
        scale=bool(call.attrs.scale),
    )


def group_norm(call: relax.Call, operands: Operands) -> relax.Expr | None:
    """Any group norm; the order of the reduced axes does not matter."""
    if call.ty.ndim != 4:
        return None
    return relax.op.nn.group_norm(
        operands.last(call.args[0]),
        *call.args[1:],
        num_groups=int(call.attrs.num_groups),
        channel_axis=AXIS[int(call.attrs.channel_axis) % 4],
        axes=sorted(AXIS[int(axis) % 4] for axis in call.attrs.axes),
        epsilon=float(call.attrs.epsilon),
        center=bool(call.attrs.center),
        scale=bool(call.attrs.scale),
    )


def instance_norm(call: relax.Call, operands: Operands) -> relax.Expr | None:
    """Any instance norm; the order of the reduced axes does not matter."""
    if call.ty.ndim != 4:
        return None
    return relax.op.nn.instance_norm(
        operands.last(call.args[0]),
        *call.args[1:],
        channel_axis=AXIS[int(call.attrs.channel_axis) % 4],
        axes=sorted(AXIS[int(axis) % 4] for axis in call.attrs.axes),
        epsilon=float(call.attrs.epsilon),
        center=bool(call.attrs.center),
        scale=bool(call.attrs.scale),
    )
