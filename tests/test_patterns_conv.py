"""Convolution: bias, batch norm, activation and residual in one kernel, and what stays outside."""

from __future__ import annotations

import numpy as np
import pytest
from fusion import KEEP, check_fusion, constant, module
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvmfuse.reasons import Code

op = relax.op
CONV, ADD, RELU, PERMUTE = (
    f"relax.{name}" for name in ["nn.conv2d", "add", "nn.relu", "permute_dims"]
)
NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
IMAGE, WEIGHT = (1, 10, 10, 8), (16, 3, 3, 8)


def conv(x: relax.Expr, w: relax.Expr, **attrs) -> relax.Expr:
    return op.nn.conv2d(x, w, **({"padding": 1} | NHWC | attrs))


def batch_norm(x: relax.Expr, channels: int) -> relax.Expr:
    positive = relax.const(np.linspace(0.5, 2.0, channels, dtype="float32"))
    statistics = [constant(channels, seed=seed) for seed in (1, 2, 3)]
    return op.nn.batch_norm(x, *statistics, positive, axis=-1, training=False)[0]


def test_bias_activation_and_residual_are_one_kernel() -> None:
    mod = module(
        {"x": IMAGE, "w": WEIGHT, "b": (16,), "r": (1, 10, 10, 16)},
        lambda emit, x, w, b, r: op.add(op.nn.relu(op.add(conv(x, w), b)), r),
    )
    check_fusion(mod, groups=[[CONV, ADD, RELU, ADD]], options=KEEP)


def test_the_outlined_function() -> None:
    @I.ir_module
    class Expected:
        @R.function(private=True)
        def fused_conv2d_add_relu(
            x: R.Tensor((1, 10, 10, 8), "float32"),
            w: R.Tensor((16, 3, 3, 8), "float32"),
            b: R.Tensor((16,), "float32"),
        ) -> R.Tensor((1, 10, 10, 16), "float32"):
            R.func_attr({"Primitive": True})
            with R.dataflow():
                lv: R.Tensor((1, 10, 10, 16), "float32") = R.nn.conv2d(
                    x,
                    w,
                    padding=[1, 1, 1, 1],
                    data_layout="NHWC",
                    kernel_layout="OHWI",
                    out_layout="NHWC",
                )
                lv1: R.Tensor((1, 10, 10, 16), "float32") = R.add(lv, b)
                out: R.Tensor((1, 10, 10, 16), "float32") = R.nn.relu(lv1)
                R.output(out)
            return out

        @R.function
        def main(
            x: R.Tensor((1, 10, 10, 8), "float32"),
            w: R.Tensor((16, 3, 3, 8), "float32"),
            b: R.Tensor((16,), "float32"),
        ) -> R.Tensor((1, 10, 10, 16), "float32"):
            cls = Expected
            with R.dataflow():
                out: R.Tensor((1, 10, 10, 16), "float32") = cls.fused_conv2d_add_relu(x, w, b)
                R.output(out)
            return out

    mod = module(
        {"x": IMAGE, "w": WEIGHT, "b": (16,)},
        lambda emit, x, w, b: op.nn.relu(op.add(conv(x, w), b)),
    )
    check_fusion(mod, groups=[[CONV, ADD, RELU]], options=KEEP, expected=Expected, numerics=False)


def test_batch_norm_is_folded_into_the_weights() -> None:
    def body(emit, x):
        normal = batch_norm(op.add(conv(x, constant(*WEIGHT)), constant(16, seed=5)), 16)
        return op.nn.relu(normal)

    check_fusion(module({"x": IMAGE}, body), groups=[[CONV, ADD, RELU]])


def test_a_channels_first_network_is_converted_once() -> None:
    """One transpose at either end; the weights are turned at compile time."""

    def body(emit, x):
        hidden = op.nn.relu(op.nn.conv2d(x, constant(16, 8, 3, 3), padding=1))
        return op.nn.conv2d(hidden, constant(8, 16, 1, 1, seed=1))

    check_fusion(
        module({"x": (1, 8, 10, 10)}, body),
        groups=[[PERMUTE, CONV, RELU], [CONV, PERMUTE]],
        cut={("lv1", "out"): Code.TWO_ANCHORS},
    )


@pytest.mark.parametrize(
    ("weight", "attrs"),
    [
        ((8, 3, 3, 1), {"groups": 8}),
        ((16, 3, 3, 4), {"groups": 2}),
        ((16, 3, 3, 8), {"strides": 2}),
        ((16, 3, 3, 8), {"dilation": 2, "padding": 2}),
        ((16, 1, 1, 8), {"padding": 0}),
    ],
)
def test_depthwise_grouped_strided_dilated_pointwise(weight: tuple, attrs: dict) -> None:
    mod = module(
        {"x": IMAGE, "w": weight, "b": (weight[0],)},
        lambda emit, x, w, b: op.clip(op.add(conv(x, w, **attrs), b), 0.0, 6.0),
    )
    check_fusion(mod, groups=[[CONV, ADD, "relax.clip"]], options=KEEP)


def test_one_and_three_dimensions() -> None:
    line = module(
        {"x": (2, 8, 20), "w": (16, 8, 3), "b": (16, 1)},
        lambda emit, x, w, b: op.nn.relu(op.add(op.nn.conv1d(x, w, padding=1), b)),
    )
    check_fusion(line, groups=[["relax.nn.conv1d", ADD, RELU]], options=KEEP)
    volume = module(
        {"x": (1, 4, 5, 6, 7), "w": (8, 4, 3, 3, 3)},
        lambda emit, x, w: op.nn.relu(op.nn.conv3d(x, w, padding=1)),
    )
    check_fusion(volume, groups=[["relax.nn.conv3d", RELU]], options=KEEP)


def test_a_cheap_producer_is_computed_where_it_is_read() -> None:
    def body(emit, x, gate, w):
        return conv(op.multiply(x, gate), w, padding=0)

    mod = module({"x": IMAGE, "gate": (1, 1, 1, 8), "w": (16, 1, 1, 8)}, body)
    check_fusion(mod, groups=[["relax.multiply", CONV]], options=KEEP)


# -- near misses -----------------------------------------------------------------------------------


def test_two_convolutions_are_two_kernels() -> None:
    def body(emit, x, w, v):
        return conv(emit(op.nn.relu(conv(x, w)), "hidden"), v, padding=0)

    text = "conv2d and conv2d are kernels of their own; no schedule rule has both"
    check_fusion(
        module({"x": IMAGE, "w": WEIGHT, "v": (8, 1, 1, 16)}, body),
        groups=[[CONV, RELU], [CONV]],
        options=KEEP,
        cut={("hidden", "out"): (Code.TWO_ANCHORS, text)},
    )


def test_a_branch_point_is_stored() -> None:
    def body(emit, x, w, v):
        hidden = emit(conv(x, w), "hidden")
        return op.add(conv(emit(op.nn.relu(hidden), "bent"), v), hidden)

    again = "out also reads a value computed from the kernel's result"
    check_fusion(
        module({"x": IMAGE, "w": WEIGHT, "v": (16, 3, 3, 16)}, body),
        groups=[[CONV], [RELU, CONV, ADD]],
        options=KEEP,
        cut={
            ("hidden", "bent"): (
                Code.MULTI_USE,
                "hidden has 2 readers and is stored for the others",
            ),
            ("hidden", "out"): (Code.NOT_CONVEX, again),
        },
    )


def test_an_expensive_producer_is_not_repeated_for_each_tap() -> None:
    def body(emit, x, w):
        return conv(emit(op.sigmoid(x), "gate"), w)

    text = (
        "relax.sigmoid on 1x10x10x8 would be computed again for each of the 1x10x10x16 "
        "elements that read it"
    )
    check_fusion(
        module({"x": IMAGE, "w": WEIGHT}, body),
        groups=[["relax.sigmoid"], [CONV]],
        options=KEEP,
        cut={("gate", "out"): (Code.RECOMPUTE_COSTS_MORE, text)},
    )


def test_a_scale_of_a_shared_convolution_is_not_folded() -> None:
    """Folding it would compute the convolution twice."""

    def body(emit, x):
        hidden = emit(conv(x, constant(*WEIGHT)), "hidden")
        return hidden, batch_norm(hidden, 16)

    check_fusion(
        module({"x": IMAGE}, body),
        groups=[[CONV], ["relax.multiply", ADD]],
        options=KEEP,
        cut={("out", "lv"): (Code.MULTI_USE, "out is an output and is stored anyway")},
    )
