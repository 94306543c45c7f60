"""Pooling with the elementwise operators after it."""

from __future__ import annotations

import pytest
from fusion import KEEP, check_fusion, module
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvmfuse.reasons import Code

op = relax.op
IMAGE = (1, 12, 12, 8)
POOLS = {
    "relax.nn.max_pool2d": lambda x: op.nn.max_pool2d(
        x, (3, 3), strides=(2, 2), padding=(1, 1), layout="NHWC"
    ),
    "relax.nn.avg_pool2d": lambda x: op.nn.avg_pool2d(
        x, (2, 2), strides=(2, 2), layout="NHWC", count_include_pad=True
    ),
    "relax.nn.adaptive_avg_pool2d": lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1), layout="NHWC"),
}


@pytest.mark.parametrize("pool", POOLS)
def test_scale_shift_and_activation_after_a_pool(pool: str) -> None:
    def body(emit, x, scale, shift):
        return op.nn.relu(op.add(op.multiply(POOLS[pool](x), scale), shift))

    mod = module({"x": IMAGE, "scale": (8,), "shift": (8,)}, body)
    groups = [[pool, "relax.multiply", "relax.add", "relax.nn.relu"]]
    check_fusion(mod, groups=groups, options=KEEP)


def test_the_outlined_function() -> None:
    @I.ir_module
    class Expected:
        @R.function(private=True)
        def fused_max_pool2d_relu(
            x: R.Tensor((1, 12, 12, 8), "float32"),
        ) -> R.Tensor((1, 6, 6, 8), "float32"):
            R.func_attr({"Primitive": True})
            with R.dataflow():
                lv: R.Tensor((1, 6, 6, 8), "float32") = R.nn.max_pool2d(
                    x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1], layout="NHWC"
                )
                out: R.Tensor((1, 6, 6, 8), "float32") = R.nn.relu(lv)
                R.output(out)
            return out

        @R.function
        def main(
            x: R.Tensor((1, 12, 12, 8), "float32"),
        ) -> R.Tensor((1, 6, 6, 8), "float32"):
            cls = Expected
            with R.dataflow():
                out: R.Tensor((1, 6, 6, 8), "float32") = cls.fused_max_pool2d_relu(x)
                R.output(out)
            return out

    mod = module({"x": IMAGE}, lambda emit, x: op.nn.relu(POOLS["relax.nn.max_pool2d"](x)))
    groups = [["relax.nn.max_pool2d", "relax.nn.relu"]]
    check_fusion(mod, groups=groups, options=KEEP, expected=Expected, numerics=False)


def test_a_reshape_after_a_pool_is_in_its_kernel() -> None:
    """apache/tvm issue 17165: pool -> reshape is not fused there."""

    def body(emit, x):
        return op.tanh(op.reshape(POOLS["relax.nn.adaptive_avg_pool2d"](x), (1, 8)))

    groups = [["relax.nn.adaptive_avg_pool2d", "relax.reshape", "relax.tanh"]]
    check_fusion(module({"x": IMAGE}, body), groups=groups, options=KEEP)


def test_a_pool_and_the_convolution_before_it_are_two_kernels() -> None:
    def body(emit, x, w):
        hidden = op.nn.conv2d(
            x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC"
        )
        return POOLS["relax.nn.max_pool2d"](emit(op.nn.relu(hidden), "hidden"))

    text = "conv2d and max_pool2d are kernels of their own; no schedule rule has both"
    check_fusion(
        module({"x": IMAGE, "w": (8, 3, 3, 8)}, body),
        groups=[["relax.nn.conv2d", "relax.nn.relu"], ["relax.nn.max_pool2d"]],
        options=KEEP,
        cut={("hidden", "out"): (Code.TWO_ANCHORS, text)},
    )


def test_a_producer_stays_outside_the_windows() -> None:
    """Each of its elements is in several windows."""

    def body(emit, x):
        return POOLS["relax.nn.max_pool2d"](emit(op.negative(x), "shifted"))

    text = "max_pool2d kernels take no relax.negative there"
    check_fusion(
        module({"x": IMAGE}, body),
        groups=[["relax.negative"], ["relax.nn.max_pool2d"]],
        options=KEEP,
        cut={("shifted", "out"): (Code.OPERATOR, text)},
    )


def test_a_transpose_after_a_pool_is_a_kernel_of_its_own() -> None:
    def body(emit, x):
        return op.permute_dims(emit(POOLS["relax.nn.max_pool2d"](x), "pooled"), [0, 3, 1, 2])

    text = "max_pool2d kernels take no relax.permute_dims last"
    check_fusion(
        module({"x": IMAGE}, body),
        groups=[["relax.nn.max_pool2d"], ["relax.permute_dims"]],
        options=KEEP,
        cut={("pooled", "out"): (Code.OPERATOR, text)},
    )
