"""How each operator reads NHWC operands: one handler per kind of operator.

A handler gets the call as the model wrote it (NCHW) and returns the same call on channels-last
operands, or ``None`` if there is no such call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from tvm import relax
from tvm.ir import Op

from ..operators import KIND_OF_OPERATOR, Kind
from .rewriter import constant, make_constant

CHANNELS_LAST = "NHWC"
# Axis of NCHW -> axis of NHWC.
AXIS = (0, 3, 1, 2)


class Operands(Protocol):
    """What a handler asks of the walk."""

    def last(self, expr: relax.Expr) -> relax.Expr:
        """The channels-last form of an operand."""

    def items(self, expr: relax.Expr) -> list[relax.Expr]:
        """The channels-last forms of the tensors of a tuple operand."""


Handler = Callable[[relax.Call, Operands], relax.Expr | None]


def converts(value: relax.Expr) -> bool:
    """True for a convolution that is worth a permute: NCHW with a constant OIHW weight.

    A weight that is an input would be permuted in each run; the importers bind weights as
    constants unless asked otherwise.
    """
    if not isinstance(value, relax.Call) or not isinstance(value.op, Op):
        return False
    if value.op.name != "relax.nn.conv2d":
        return False
    attrs = value.attrs
    layouts = (str(attrs.data_layout), str(attrs.out_layout), str(attrs.kernel_layout))
    return layouts == ("NCHW", "NCHW", "OIHW") and constant(value.args[1]) is not None


def is_channels_last(value: relax.Expr) -> bool:
    """True for a convolution that reads NHWC already."""
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, Op)
        and value.op.name == "relax.nn.conv2d"
        and str(value.attrs.data_layout) == CHANNELS_LAST
    )


def handler_of(call: relax.Call) -> Handler | None:
    """The handler of ``call``, or ``None`` if the operator needs NCHW (or an unknown rank)."""
    handler = _HANDLERS.get(call.op.name)
    if handler is not None:
        return handler
    return _elementwise if call.op.name in _ELEMENTWISE else None


def _convolution(call: relax.Call, operands: Operands) -> relax.Expr | None:
    weight = constant(call.args[1])
    if weight is None or not converts(call):
        return None
    attrs = call.attrs
    return relax.op.nn.conv2d(
        operands.last(call.args[0]),
        make_constant(np.ascontiguousarray(weight.transpose(2, 3, 1, 0))),
        strides=[int(s) for s in attrs.strides],
        padding=[int(p) for p in attrs.padding],
        dilation=[int(d) for d in attrs.dilation],
        groups=int(attrs.groups),
        data_layout=CHANNELS_LAST,
        kernel_layout="HWIO",
        out_layout=CHANNELS_LAST,
        out_dtype=str(attrs.out_dtype) if attrs.out_dtype else None,
    )


def _elementwise(call: relax.Call, operands: Operands) -> relax.Expr | None:
    if not isinstance(call.ty, relax.TensorType) or call.ty.ndim != 4:
        return None
    args = []
    for arg in call.args:
        if not isinstance(arg.ty, relax.TensorType):
            args.append(arg)  # a bound of clip
        elif not isinstance(arg.ty.shape, relax.ShapeExpr):
            return None
        else:
            args.append(operands.last(arg))
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _prelu(call: relax.Call, operands: Operands) -> relax.Expr | None:
    if call.ty.ndim != 4:
        return None
    axis = AXIS[int(call.attrs.axis) % 4]
    return relax.op.nn.prelu(operands.last(call.args[0]), call.args[1], axis)


def _pool(
    pool: Callable[..., relax.Expr], call: relax.Call, operands: Operands
) -> relax.Expr | None:
    if str(call.attrs.layout) != "NCHW" or str(call.attrs.out_layout) != "NCHW":
        return None
    attrs = call.attrs
    return pool(
        operands.last(call.args[0]),
        pool_size=[int(s) for s in attrs.pool_size],
        strides=[int(s) for s in attrs.strides],
        padding=[int(p) for p in attrs.padding],
        dilation=[int(d) for d in attrs.dilation],
        ceil_mode=bool(attrs.ceil_mode),
        count_include_pad=bool(attrs.count_include_pad),
        layout=CHANNELS_LAST,
        out_layout=CHANNELS_LAST,
    )


def _adaptive_pool(call: relax.Call, operands: Operands) -> relax.Expr | None:
    if str(call.attrs.layout) != "NCHW" or str(call.attrs.out_layout) != "NCHW":
        return None
    size = None if call.attrs.output_size is None else [int(s) for s in call.attrs.output_size]
    return relax.op.nn.adaptive_avg_pool2d(
        operands.last(call.args[0]), size, CHANNELS_LAST, CHANNELS_LAST
    )


def _resize(call: relax.Call, operands: Operands) -> relax.Expr | None:
    if str(call.attrs.layout) != "NCHW":
        return None
    attrs = call.attrs
    return relax.op.image.resize2d(
        operands.last(call.args[0]),
        call.args[1],
        roi=[float(getattr(r, "value", r)) for r in attrs.roi],
        layout=CHANNELS_LAST,
        method=str(attrs.method),
        coordinate_transformation_mode=str(attrs.coordinate_transformation_mode),
        rounding_method=str(attrs.rounding_method),
        cubic_alpha=float(attrs.cubic_alpha),
        cubic_exclude=int(attrs.cubic_exclude),
        extrapolation_value=float(attrs.extrapolation_value),
        out_dtype=str(attrs.out_dtype) if attrs.out_dtype else None,
    )


def _reduction(
    reduce: Callable[..., relax.Expr], call: relax.Call, operands: Operands
) -> relax.Expr | None:
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


def _softmax(
    softmax: Callable[..., relax.Expr], call: relax.Call, operands: Operands
) -> relax.Expr | None:
    if call.ty.ndim != 4:
        return None
    return softmax(operands.last(call.args[0]), AXIS[int(call.attrs.axis) % 4])


def _concat(call: relax.Call, operands: Operands) -> relax.Expr | None:
    if call.ty.ndim != 4 or call.attrs.axis is None:
        return None
    return relax.op.concat(operands.items(call.args[0]), AXIS[int(call.attrs.axis) % 4])


def _split(call: relax.Call, operands: Operands) -> relax.Expr | None:
    if call.args[0].ty.ndim != 4 or not isinstance(call.ty, relax.TupleType):
        return None
    parts = call.attrs.indices_or_sections
    parts = (
        int(parts) if hasattr(parts, "value") or isinstance(parts, int) else [int(p) for p in parts]
    )
    return relax.op.split(operands.last(call.args[0]), parts, AXIS[int(call.attrs.axis) % 4])


def _slice(call: relax.Call, operands: Operands) -> relax.Expr | None:
    if call.ty.ndim != 4 or not isinstance(call.args[1], relax.Tuple):
        return None
    axes = [AXIS[int(a.value) % 4] for a in call.args[1].fields]
    return relax.op.strided_slice(
        operands.last(call.args[0]),
        axes,
        *call.args[2:],
        assume_inbound=bool(call.attrs.assume_inbound),
    )


def _pad(call: relax.Call, operands: Operands) -> relax.Expr | None:
    if call.ty.ndim != 4:
        return None
    widths = [int(w) for w in call.attrs.pad_width]
    pairs = [widths[2 * axis : 2 * axis + 2] for axis in (0, 2, 3, 1)]
    return relax.op.nn.pad(
        operands.last(call.args[0]),
        [width for pair in pairs for width in pair],
        str(call.attrs.pad_mode),
        float(call.attrs.pad_value),
    )


def _batch_norm(call: relax.Call, operands: Operands) -> relax.Expr | None:
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


# Elementwise by the table, but with operands or attributes that number axes, or that take none.
_NOT_ELEMENTWISE = frozenset(
    {
        "relax.nn.prelu",
        "relax.quantize",
        "relax.dequantize",
        "relax.tril",
        "relax.triu",
        "relax.full",
        "relax.full_like",
        "relax.ones",
        "relax.zeros",
        "relax.arange",
    }
)
_ELEMENTWISE = frozenset(
    name
    for name, kind in KIND_OF_OPERATOR.items()
    if kind is Kind.ELEMENTWISE and name not in _NOT_ELEMENTWISE
)
_HANDLERS: dict[str, Handler] = {
    "relax.nn.conv2d": _convolution,
    "relax.nn.prelu": _prelu,
    "relax.nn.max_pool2d": partial(_pool, relax.op.nn.max_pool2d),
    "relax.nn.avg_pool2d": partial(_pool, relax.op.nn.avg_pool2d),
    "relax.nn.adaptive_avg_pool2d": _adaptive_pool,
    "relax.image.resize2d": _resize,
    "relax.sum": partial(_reduction, relax.op.sum),
    "relax.mean": partial(_reduction, relax.op.mean),
    "relax.max": partial(_reduction, relax.op.max),
    "relax.min": partial(_reduction, relax.op.min),
    "relax.prod": partial(_reduction, relax.op.prod),
    "relax.variance": partial(_reduction, relax.op.variance),
    "relax.std": partial(_reduction, relax.op.std),
    "relax.nn.softmax": partial(_softmax, relax.op.nn.softmax),
    "relax.nn.log_softmax": partial(_softmax, relax.op.nn.log_softmax),
    "relax.concat": _concat,
    "relax.split": _split,
    "relax.strided_slice": _slice,
    "relax.nn.pad": _pad,
    "relax.nn.batch_norm": _batch_norm,
}
