"""Squeeze-and-excite gates: a mean and two tiny layers as one kernel."""

from __future__ import annotations

from fusion import KEEP, check_fusion, module
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvmfuse.patterns.squeeze_excite import MAX_WEIGHTS
from tvmfuse.reasons import Code

op = relax.op
NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
IMAGE = (1, 6, 6, 16)
LAYERS = {"down": (4, 1, 1, 16), "up": (16, 1, 1, 4)}
NAMES = "mean nn.conv2d add nn.relu sigmoid multiply matmul"
MEAN, CONV, ADD, RELU, SIGMOID, MULTIPLY, MATMUL = (f"relax.{name}" for name in NAMES.split())


def squeezed(x: relax.Expr) -> relax.Expr:
    return op.mean(x, axis=[1, 2], keepdims=True)


def layer(x: relax.Expr, w: relax.Expr) -> relax.Expr:
    return op.nn.conv2d(x, w, **NHWC)


def test_the_gate_is_one_kernel_and_its_reader_another() -> None:
    def body(emit, x, down, c, up, d):
        hidden = op.nn.relu(op.add(layer(squeezed(x), down), c))
        gate = op.sigmoid(op.add(layer(hidden, up), d))
        return op.multiply(x, emit(gate, "gate"))

    shapes = {"x": IMAGE, "down": LAYERS["down"], "c": (4,), "up": LAYERS["up"], "d": (16,)}
    check_fusion(
        module(shapes, body),
        groups=[[MEAN, CONV, ADD, RELU, CONV, ADD, SIGMOID], [MULTIPLY]],
        options=KEEP,
        cut={("gate", "out"): (Code.SHAPE, "out is 1x6x6x16, the kernel makes 1x1x1x16")},
    )


def test_the_outlined_function() -> None:
    @I.ir_module
    class Expected:
        @R.function(private=True)
        def fused_mean_conv2d_relu_conv2d_sigmoid(
            x: R.Tensor((1, 6, 6, 16), "float32"),
            down: R.Tensor((4, 1, 1, 16), "float32"),
            up: R.Tensor((16, 1, 1, 4), "float32"),
        ) -> R.Tensor((1, 1, 1, 16), "float32"):
            R.func_attr({"Primitive": True})
            with R.dataflow():
                lv: R.Tensor((1, 1, 1, 16), "float32") = R.mean(x, axis=[1, 2], keepdims=True)
                lv1: R.Tensor((1, 1, 1, 4), "float32") = R.nn.conv2d(
                    lv, down, data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC"
                )
                lv2: R.Tensor((1, 1, 1, 4), "float32") = R.nn.relu(lv1)
                lv3: R.Tensor((1, 1, 1, 16), "float32") = R.nn.conv2d(
                    lv2, up, data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC"
                )
                out: R.Tensor((1, 1, 1, 16), "float32") = R.sigmoid(lv3)
                R.output(out)
            return out

        @R.function
        def main(
            x: R.Tensor((1, 6, 6, 16), "float32"),
            down: R.Tensor((4, 1, 1, 16), "float32"),
            up: R.Tensor((16, 1, 1, 4), "float32"),
        ) -> R.Tensor((1, 1, 1, 16), "float32"):
            cls = Expected
            with R.dataflow():
                out: R.Tensor((1, 1, 1, 16), "float32") = cls.fused_mean_conv2d_relu_conv2d_sigmoid(
                    x, down, up
                )
                R.output(out)
            return out

    def body(emit, x, down, up):
        return op.sigmoid(layer(op.nn.relu(layer(squeezed(x), down)), up))

    check_fusion(
        module({"x": IMAGE} | LAYERS, body),
        groups=[[MEAN, CONV, RELU, CONV, SIGMOID]],
        options=KEEP,
        expected=Expected,
        numerics=False,
    )


# -- near misses -----------------------------------------------------------------------------------


def rejected(body, shapes: dict, groups: list, cut: dict, verdict: tuple[Code, str]) -> None:
    check_fusion(
        module({"x": IMAGE} | shapes, body),
        groups=groups,
        options=KEEP,
        cut=cut,
        rejects={("squeeze_excite", "mean"): verdict},
    )


def test_a_mean_of_rows_leaves_many_pixels() -> None:
    def body(emit, x, down, up):
        mean = emit(op.mean(x, axis=[1], keepdims=True), "mean")
        return layer(emit(layer(mean, down), "hidden"), up)

    rejected(
        body,
        LAYERS,
        [[MEAN], [CONV], [CONV]],
        {("mean", "hidden"): Code.TWO_ANCHORS, ("hidden", "out"): Code.TWO_ANCHORS},
        (Code.AXES, "mean leaves more than one pixel"),
    )


def test_a_mean_that_something_else_reads_too() -> None:
    def body(emit, x, down, up):
        mean = emit(squeezed(x), "mean")
        return op.add(layer(emit(layer(mean, down), "hidden"), up), mean)

    rejected(
        body,
        LAYERS,
        [[MEAN], [CONV], [CONV, ADD]],
        {
            ("mean", "hidden"): Code.TWO_ANCHORS,
            ("hidden", "lv"): Code.TWO_ANCHORS,
            ("mean", "out"): Code.TWO_ANCHORS,
        },
        (Code.MULTI_USE, "mean has 2 readers, not one"),
    )


def test_no_layer_after_the_mean() -> None:
    def body(emit, x):
        return op.nn.softmax(emit(squeezed(x), "mean"), axis=-1)

    rejected(
        body,
        {},
        [[MEAN], ["relax.nn.softmax"]],
        {("mean", "out"): Code.TWO_ANCHORS},
        (Code.OPERATOR, "out (relax.nn.softmax) follows, no layer"),
    )


def test_a_gate_of_more_than_one_pixel() -> None:
    def body(emit, x, wide):
        return op.multiply(emit(squeezed(x), "mean"), wide)

    rejected(
        body,
        {"wide": IMAGE},
        [[MEAN, MULTIPLY]],
        {},
        (Code.SHAPE, "out is no gate over channels"),
    )


def test_layers_too_large_for_one_small_kernel() -> None:
    channels = 768
    weights = 2 * channels * channels
    assert weights > MAX_WEIGHTS

    def body(emit, x, down, up):
        return layer(emit(layer(emit(squeezed(x), "mean"), down), "hidden"), up)

    square = (channels, 1, 1, channels)
    mod = module({"x": (1, 2, 2, channels), "down": square, "up": square}, body)
    check_fusion(
        mod,
        groups=[[MEAN], [CONV], [CONV]],
        options=KEEP,
        cut={("mean", "hidden"): Code.TWO_ANCHORS, ("hidden", "out"): Code.TWO_ANCHORS},
        rejects={
            ("squeeze_excite", "mean"): (
                Code.PATTERN_CHECK,
                f"its layers have {weights} weights, over {MAX_WEIGHTS}",
            )
        },
        numerics=False,
    )


def of_matmuls(emit, x, down, up):
    hidden = emit(op.nn.relu(op.matmul(emit(squeezed(x), "mean"), down)), "hidden")
    return op.matmul(hidden, up)


def test_layers_that_are_matmuls() -> None:
    mod = module({"x": IMAGE, "down": (16, 4), "up": (4, 16)}, of_matmuls)
    check_fusion(mod, groups=[[MEAN, MATMUL, RELU, MATMUL]], options=KEEP)


def test_more_than_one_image() -> None:
    mod = module({"x": (2, 6, 6, 16), "down": (16, 4), "up": (4, 16)}, of_matmuls)
    check_fusion(
        mod,
        groups=[[MEAN], [MATMUL, RELU], [MATMUL]],
        options=KEEP,
        cut={("mean", "lv"): Code.TWO_ANCHORS, ("hidden", "out"): Code.TWO_ANCHORS},
        rejects={("squeeze_excite", "mean"): Code.AXES},
    )
