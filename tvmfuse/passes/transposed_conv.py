"""Transposed convolution whose windows do not overlap -> 1x1 convolution and depth-to-space.

Before::

    y = conv2d_transpose(x, W[I, O, kh, kw], strides=[kh, kw])          # [N, O, H * kh, W * kw]

After::

    m = conv2d(x as NHWC, W[1, 1, I, (kh, kw, O)])                      # [N, H, W, kh * kw * O]
    y = m as [N, H, W, kh, kw, O], permuted to [N, H, kh, W, kw, O], as NCHW

With kernel equal to stride each output pixel is written by one input pixel alone, so the sum over
windows is a sum of one term (Shi et al., "Is the deconvolution layer the same as a convolutional
layer?", 2016, section 3, for the sub-pixel form).  topi instead inserts zeros between the pixels
and convolves: kh * kw times the multiplications.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from .recompose.match import is_call
from .rewriter import RewriteContext, constant, make_constant


def depth_to_space(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """Rewrite a ``conv2d_transpose`` (NCHW, constant IOHW weight) whose kernel is its stride."""
    if not is_call(value, "nn.conv2d_transpose"):
        return None
    weight = constant(value.args[1])
    data = value.args[0]
    if weight is None or not _windows_tile(value, weight) or not _has_shape(data):
        return None
    batch, _, height, width = data.ty.shape.values
    inputs, outputs, kernel_height, kernel_width = weight.shape
    packed = np.ascontiguousarray(weight.transpose(0, 2, 3, 1)).reshape(1, 1, inputs, -1)
    pixels = context.emit(
        relax.op.nn.conv2d(
            context.emit(relax.op.permute_dims(data, [0, 2, 3, 1])),
            make_constant(packed),
            data_layout="NHWC",
            kernel_layout="HWIO",
            out_layout="NHWC",
            out_dtype=str(value.attrs.out_dtype) if value.attrs.out_dtype else None,
        )
    )
    blocks = context.emit(
        relax.op.reshape(pixels, [batch, height, width, kernel_height, kernel_width, outputs])
    )
    ordered = context.emit(relax.op.permute_dims(blocks, [0, 1, 3, 2, 4, 5]))
    image = context.emit(
        relax.op.reshape(ordered, [batch, height * kernel_height, width * kernel_width, outputs])
    )
    return relax.op.permute_dims(image, [0, 3, 1, 2])


def _windows_tile(call: relax.Call, weight: np.ndarray) -> bool:
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.out_layout), str(attrs.kernel_layout))
    return (
        layouts == ("NCHW", "NCHW", "IOHW")
        and [int(s) for s in attrs.strides] == list(weight.shape[2:])
        and all(int(d) == 1 for d in attrs.dilation)
        and not any(int(p) for p in [*attrs.padding, *attrs.output_padding])
        and int(attrs.groups) == 1
    )


def _has_shape(expr: relax.Expr) -> bool:
    return isinstance(expr.ty, relax.TensorType) and isinstance(expr.ty.shape, relax.ShapeExpr)
