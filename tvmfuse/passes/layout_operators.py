"""How each operator reads NHWC operands: one handler per kind of operator.

A handler gets the call as the model wrote it (NCHW) and returns the same call on channels-last
operands, or ``None`` if there is no such call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from tvm import relax
from tvm.ir import Op

from ..operators import KIND_OF_OPERATOR, Kind
from .layout_axes import (
    Operands,
    batch_norm,
    concat,
    group_norm,
    instance_norm,
    layer_norm,
    pad,
    prelu,
    reduction,
    slice_,
    softmax,
    split,
)
from .rewriter import constant, make_constant

CHANNELS_LAST = "NHWC"

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
        else:
            args.append(operands.last(arg))
    return relax.Call(call.op, args, call.attrs, call.ty_args)


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
    attrs = call.attrs
    # A region of interest numbers the axes of the layout; no importer of TVM's gives one.
    is_cropped = str(attrs.coordinate_transformation_mode) == "tf_crop_and_resize"
    if str(attrs.layout) != "NCHW" or is_cropped:
        return None
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
    "relax.nn.prelu": prelu,
    "relax.nn.max_pool2d": partial(_pool, relax.op.nn.max_pool2d),
    "relax.nn.avg_pool2d": partial(_pool, relax.op.nn.avg_pool2d),
    "relax.nn.adaptive_avg_pool2d": _adaptive_pool,
    "relax.image.resize2d": _resize,
    "relax.sum": partial(reduction, relax.op.sum),
    "relax.mean": partial(reduction, relax.op.mean),
    "relax.max": partial(reduction, relax.op.max),
    "relax.min": partial(reduction, relax.op.min),
    "relax.prod": partial(reduction, relax.op.prod),
    "relax.variance": partial(reduction, relax.op.variance),
    "relax.std": partial(reduction, relax.op.std),
    "relax.nn.softmax": partial(softmax, relax.op.nn.softmax),
    "relax.nn.log_softmax": partial(softmax, relax.op.nn.log_softmax),
    "relax.concat": concat,
    "relax.split": split,
    "relax.strided_slice": slice_,
    "relax.nn.pad": pad,
    "relax.nn.batch_norm": batch_norm,
    "relax.nn.layer_norm": layer_norm,
    "relax.nn.group_norm": group_norm,
    "relax.nn.instance_norm": instance_norm,
}
