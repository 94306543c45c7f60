"""llvm.conv and llvm.depthwise: numbers against float64, declines, and the rules' properties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.target import Target
from tvmfuse.schedules.analysis import blocks
from tvmfuse.schedules.base import ScheduleRule
from tvmfuse.schedules.llvm.conv import ConvRule
from tvmfuse.schedules.llvm.conv_structure import Window, find_window
from tvmfuse.schedules.llvm.conv_tile import lane_choices, plan_convolution, vector_lanes
from tvmfuse.schedules.llvm.depthwise import DepthwiseRule
from tvmfuse.schedules.llvm.machine import machine_of
from workloads import lowered

TARGET = Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
HOST = Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})
Image = tuple[int, int, int, int]


def conv2d(x: relax.Expr, w: relax.Expr, **options: object) -> relax.Expr:
    """A channels-last convolution."""
    return relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", **options)


def constant(value: float) -> relax.Expr:
    """A float32 scalar."""
    return relax.const(value, "float32")


def reference(
    x: np.ndarray,
    w: np.ndarray,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> np.ndarray:
    """The convolution in float64, tap by tap."""
    x, w = x.astype("float64"), w.astype("float64")
    taps_y, taps_x, depth, channels = w.shape
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height = (padded.shape[1] - dilation * (taps_y - 1) - 1) // stride + 1
    width = (padded.shape[2] - dilation * (taps_x - 1) - 1) // stride + 1
    out = np.zeros((x.shape[0], height, width, channels))
    per_group = channels // groups
    for row in range(taps_y):
        for column in range(taps_x):
            top, left = row * dilation, column * dilation
            view = padded[
                :,
                top : top + stride * (height - 1) + 1 : stride,
                left : left + stride * (width - 1) + 1 : stride,
            ]
            for group in range(groups):
                chosen = slice(group * per_group, (group + 1) * per_group)
                inputs = view[..., group * depth : (group + 1) * depth]
                out[..., chosen] += inputs @ w[row, column][:, chosen]
    return out


def inputs_of(func: tirx.PrimFunc, outputs: int = 1) -> list[np.ndarray]:
    """Seeded inputs for every parameter but the outputs."""
    generator = np.random.default_rng(7)
    return [
        generator.standard_normal([int(size) for size in parameter.shape]).astype(
            str(parameter.dtype)
        )
        for parameter in func.params[:-outputs]
    ]


def run(
    rule: ScheduleRule, func: tirx.PrimFunc, inputs: list[np.ndarray], outputs: int = 1
) -> list[np.ndarray]:
    """Schedule, build and run ``func``; the outputs."""
    assert rule.check(func, TARGET) is None
    scheduled = rule.schedule(func, TARGET, tunable=False).mod["main"]
    named = scheduled.with_attr("global_symbol", "main")
    executable = tvm.compile(tvm.IRModule({"main": named}), target=HOST)
    results = [
        tvm.runtime.tensor(
            np.full([int(size) for size in parameter.shape], np.nan, str(parameter.dtype))
        )
        for parameter in func.params[-outputs:]
    ]
    executable.mod["main"](*[tvm.runtime.tensor(value) for value in inputs], *results)
    return [result.numpy() for result in results]


def close(actual: np.ndarray, expected: np.ndarray, terms: int) -> None:
    """Equal up to float32 rounding of a sum of ``terms`` products of normal numbers."""
    tolerance = 4e-7 * max(8, terms) ** 0.5 * 8
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def plain(
    image: Image, weight: Image, stride: int = 1, padding: int = 0, groups: int = 1, **more: int
) -> tirx.PrimFunc:
    """A convolution, a bias and a ReLU."""
    shapes = {
        "x": (image, "float32"),
        "w": (weight, "float32"),
        "b": ((1, 1, 1, weight[3]), "float32"),
    }
    return lowered(
        shapes,
        lambda x, w, b: relax.op.nn.relu(
            relax.op.add(conv2d(x, w, strides=stride, padding=padding, groups=groups, **more), b)
        ),
    )


@pytest.mark.parametrize(
    ("image", "weight", "options"),
    [
        ((1, 12, 12, 3), (3, 3, 3, 16), {"stride": 2, "padding": 1}),
        ((1, 8, 10, 16), (1, 1, 16, 48), {}),
        ((2, 5, 5, 24), (1, 1, 24, 18), {}),
        ((1, 7, 7, 8), (3, 3, 8, 42), {"padding": 1}),
        ((1, 13, 13, 5), (3, 3, 5, 37), {"padding": 1}),
        ((1, 31, 37, 4), (3, 3, 4, 16), {"padding": 1}),
        ((1, 1, 1, 40), (1, 1, 40, 12), {}),
        ((1, 9, 9, 16), (3, 3, 16, 1), {"padding": 1}),
        ((2, 6, 10, 24), (3, 3, 24, 2), {"padding": 1, "stride": 2}),
        ((1, 13, 13, 32), (1, 1, 32, 3), {}),
        ((1, 6, 6, 7), (3, 3, 7, 3), {}),
        ((1, 6, 6, 33), (1, 1, 33, 4), {}),
        ((1, 14, 14, 8), (3, 3, 8, 8), {"padding": 2, "dilation": 2}),
        ((1, 16, 16, 3), (7, 7, 3, 32), {"padding": 3, "stride": 2}),
        ((1, 10, 10, 32), (3, 3, 8, 64), {"padding": 1, "groups": 4}),
        ((1, 56, 56, 16), (3, 3, 16, 32), {"padding": 1}),
    ],
)
def test_dense_and_grouped(image: Image, weight: Image, options: dict[str, int]) -> None:
    func = plain(image, weight, **options)
    x, w, b = inputs_of(func)
    (actual,) = run(ConvRule(), func, [x, w, b])
    close(actual, np.maximum(reference(x, w, **options) + b, 0), w[..., 0].size)


@pytest.mark.parametrize(
    ("image", "taps", "options"),
    [
        ((1, 10, 10, 32), 3, {"padding": 1}),
        ((2, 11, 9, 48), 3, {"padding": 1, "stride": 2}),
        ((1, 10, 10, 24), 5, {"padding": 2}),
        ((1, 5, 5, 37), 5, {"padding": 2}),
        ((1, 10, 10, 16), 5, {"padding": 2, "stride": 2}),
        ((1, 40, 40, 48), 3, {}),
    ],
)
def test_depthwise(image: Image, taps: int, options: dict[str, int]) -> None:
    channels = image[3]
    func = plain(image, (taps, taps, 1, channels), groups=channels, **options)
    assert ConvRule().check(func, TARGET) == "the convolution is depthwise"
    x, w, b = inputs_of(func)
    (actual,) = run(DepthwiseRule(), func, [x, w, b])
    expected = np.maximum(reference(x, w, groups=channels, **options) + b, 0)
    close(actual, expected, taps * taps)


def gated(taps: int, groups: int) -> tuple[tirx.PrimFunc, Callable[..., np.ndarray]]:
    """gate * x -> conv -> + bias -> hard swish -> + residual; and its float64 reference."""
    channels = 32
    image, row = (1, 10, 10, channels), (1, 1, 1, channels)
    weight = (taps, taps, channels // groups, channels)
    shapes = {"x": image, "g": row, "w": weight, "b": row, "r": image}

    def body(x, g, w, b, r):  # type: ignore[no-untyped-def]
        y = conv2d(relax.op.multiply(x, g), w, padding=taps // 2, groups=groups)
        y = relax.op.add(y, b)
        y = relax.op.multiply(y, relax.op.clip(relax.op.add(y, constant(3.0)), 0, 6))
        return relax.op.add(y, r)

    def expected(x, g, w, b, r):  # type: ignore[no-untyped-def]
        y = reference(x.astype("float64") * g, w, padding=taps // 2, groups=groups) + b
        return y * np.clip(y + 3, 0, 6) + r

    return lowered({key: (shape, "float32") for key, shape in shapes.items()}, body), expected


@pytest.mark.parametrize(("taps", "groups"), [(1, 1), (3, 1), (3, 4), (5, 32)])
def test_producer_and_epilogue(taps: int, groups: int) -> None:
    func, expected = gated(taps, groups)
    inputs = inputs_of(func)
    rule = DepthwiseRule() if groups == 32 else ConvRule()
    (actual,) = run(rule, func, inputs)
    np.testing.assert_allclose(actual, expected(*inputs), rtol=2e-4, atol=2e-4)


def test_several_outputs_before_and_after() -> None:
    """An input of the convolution and its result before the ReLU leave the group too."""
    shapes = {"x": ((1, 8, 8, 16), "float32"), "w": ((3, 3, 16, 32), "float32")}

    def body(x, w):  # type: ignore[no-untyped-def]
        emit = relax.BlockBuilder.current().emit  # an expression used twice would be made twice
        scaled = emit(relax.op.multiply(x, constant(0.5)))
        product = emit(conv2d(scaled, w, padding=1))
        return scaled, product, relax.op.nn.relu(product)

    func = lowered(shapes, body)
    x, w = inputs_of(func, outputs=3)
    scaled, product, rectified = run(ConvRule(), func, [x, w], outputs=3)
    exact = reference(x * 0.5, w, padding=1)
    np.testing.assert_array_equal(scaled, x * np.float32(0.5))
    close(product, exact, 144)
    close(rectified, np.maximum(exact, 0), 144)


def test_half_precision_weights_and_images_accumulate_in_float32() -> None:
    shapes = {"x": ((1, 8, 8, 16), "float16"), "w": ((3, 3, 16, 32), "float16")}
    func = lowered(shapes, lambda x, w: conv2d(x, w, padding=1, out_dtype="float32"))
    x, w = inputs_of(func)
    (actual,) = run(ConvRule(), func, [x, w])
    close(actual, reference(x, w, padding=1), 144)


def depth_to_space(y: relax.Expr) -> relax.Expr:
    """(1, 10, 8, 32) to (1, 20, 16, 8): the end of a transposed convolution."""
    y = relax.op.reshape(y, (1, 10, 8, 2, 2, 8))
    y = relax.op.permute_dims(y, axes=[0, 1, 3, 2, 4, 5])
    return relax.op.nn.relu(relax.op.reshape(y, (1, 20, 16, 8)))


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (
            lambda y: relax.op.permute_dims(relax.op.nn.relu(y), axes=[0, 3, 1, 2]),
            lambda y: np.maximum(y, 0).transpose(0, 3, 1, 2),
        ),
        (lambda y: relax.op.reshape(y, (1, 80, 32)), lambda y: y.reshape(1, 80, 32)),
        (
            depth_to_space,
            lambda y: (
                np.maximum(y, 0)
                .reshape(1, 10, 8, 2, 2, 8)
                .transpose(0, 1, 3, 2, 4, 5)
                .reshape(1, 20, 16, 8)
            ),
        ),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_epilogue_that_moves_elements(
    move: Callable[[relax.Expr], relax.Expr],
    expected: Callable[[np.ndarray], np.ndarray],
    groups: int,
) -> None:
    shapes = {"x": ((1, 10, 8, 16), "float32"), "w": ((3, 3, 16 // groups, 32), "float32")}
    func = lowered(shapes, lambda x, w: move(conv2d(x, w, padding=1, groups=groups)))
    x, w = inputs_of(func)
    (actual,) = run(ConvRule(), func, [x, w])
    close(actual, expected(reference(x, w, padding=1, groups=groups)), 144 // groups)


def channels_first() -> tirx.PrimFunc:
    shapes = {"x": ((1, 16, 8, 8), "float32"), "w": ((32, 16, 3, 3), "float32")}
    return lowered(shapes, lambda x, w: relax.op.nn.conv2d(x, w, padding=1))


def softmaxed() -> tirx.PrimFunc:
    return lowered({"x": ((8, 16), "float32")}, lambda x: relax.op.nn.softmax(x, axis=-1))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            channels_first,
            "the weight is not laid out as (row tap, column tap, input, output channel)",
        ),
        (softmaxed, "the group has 2 reductions; a window reduction has one"),
    ],
)
def test_declines_with_the_reason(make: Callable[[], tirx.PrimFunc], reason: str) -> None:
    func = make()
    before = func.script()
    assert ConvRule().check(func, TARGET) == reason
    assert ConvRule().apply(func, TARGET) is None
    assert func.script() == before


def test_depthwise_declines_an_epilogue_that_moves() -> None:
    shapes = {"x": ((1, 8, 8, 16), "float32"), "w": ((3, 3, 1, 16), "float32")}
    func = lowered(
        shapes, lambda x, w: relax.op.permute_dims(conv2d(x, w, groups=16), axes=[0, 2, 1, 3])
    )
    reason = "block T_transpose reads the window reduction's result elsewhere"
    assert DepthwiseRule().check(func, TARGET) == reason


def test_depthwise_declines_a_dense_convolution() -> None:
    func = plain((1, 8, 8, 16), (3, 3, 16, 16), padding=1)
    assert DepthwiseRule().check(func, TARGET) == "the convolution is not depthwise"


@pytest.mark.parametrize("groups", [1, 32])
def test_schedule_is_deterministic_and_leaves_its_input(groups: int) -> None:
    func, _ = gated(3, groups)
    rule = ConvRule() if groups == 1 else DepthwiseRule()
    before = func.script()
    first = rule.schedule(func, TARGET, tunable=False).mod["main"]
    second = rule.schedule(func, TARGET, tunable=False).mod["main"]
    assert tvm_ffi.structural_equal(first, second)
    assert func.script() == before


def loops(func: tirx.PrimFunc, kind: tirx.ForKind) -> list[tirx.For]:
    """Every loop of one kind."""
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, found.append))
    return [loop for loop in found if loop.kind == kind]


def test_one_parallel_region_and_the_tile_in_local_memory() -> None:
    func = plain((1, 40, 40, 32), (3, 3, 32, 32), padding=1)
    scheduled = ConvRule().schedule(func, TARGET, tunable=False).mod["main"]
    assert len(loops(scheduled, tirx.ForKind.PARALLEL)) == 1
    root = scheduled.body.block
    scopes = [str(buffer.scope()) for buffer in root.alloc_buffers]
    assert scopes.count("local") == 1
    assert len(root.alloc_buffers) == 2  # the padded rows and the tile: the epilogue is fused


def test_small_work_stays_on_one_thread() -> None:
    func = plain((1, 1, 1, 96), (1, 1, 96, 24))
    scheduled = ConvRule().schedule(func, TARGET, tunable=False).mod["main"]
    assert not loops(scheduled, tirx.ForKind.PARALLEL)


def window_of(func: tirx.PrimFunc) -> Window:
    """The window reduction of ``func``."""
    window = find_window(blocks(s_tir.Schedule(func)))
    assert isinstance(window, Window)
    return window


@pytest.mark.parametrize(
    ("image", "weight"),
    [((1, 56, 56, 64), (3, 3, 64, 64)), ((1, 20, 20, 96), (1, 1, 96, 18))],
)
def test_register_tile_fits_and_divides(image: Image, weight: Image) -> None:
    window = window_of(plain(image, weight, padding=weight[0] // 2))
    plan = plan_convolution(window, machine_of(TARGET), staged=True)
    pixels = plan.rows * plan.columns
    assert (pixels + 1) * plan.vectors + 1 <= 32
    assert window.width % plan.columns == 0
    assert weight[3] % (plan.vectors * plan.lanes) == 0
    assert pixels * plan.vectors >= 8


def test_awkward_channel_counts_keep_their_vectors() -> None:
    machine = machine_of(TARGET)
    assert [vector_lanes(count, machine) for count in (16, 24, 12, 42, 37)] == [16, 8, 12, 14, 37]
    assert lane_choices(24, machine)[-1] == 12
