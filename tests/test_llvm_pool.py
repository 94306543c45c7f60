"""llvm.pool: window pooling and whole-image reductions against float64, declines, properties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.target import Target
from tvmfuse.schedules.llvm.pool import PoolRule
from workloads import lowered

TARGET = Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
HOST = Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})
RULE = PoolRule()


def inputs_of(func: tirx.PrimFunc, outputs: int = 1) -> list[np.ndarray]:
    """Seeded float32 inputs for every parameter but the outputs."""
    generator = np.random.default_rng(11)
    shapes = [[int(size) for size in parameter.shape] for parameter in func.params[:-outputs]]
    return [generator.standard_normal(shape).astype("float32") for shape in shapes]


def run(func: tirx.PrimFunc, inputs: list[np.ndarray], outputs: int = 1) -> list[np.ndarray]:
    """Schedule, build and run ``func``; the outputs."""
    assert RULE.check(func, TARGET) is None
    scheduled = RULE.schedule(func, TARGET, tunable=False).mod["main"]
    named = scheduled.with_attr("global_symbol", "main")
    executable = tvm.compile(tvm.IRModule({"main": named}), target=HOST)
    results = [
        tvm.runtime.tensor(np.full([int(size) for size in parameter.shape], np.nan, "float32"))
        for parameter in func.params[-outputs:]
    ]
    executable.mod["main"](*[tvm.runtime.tensor(value) for value in inputs], *results)
    return [result.numpy() for result in results]


def windows(x: np.ndarray, taps: int, stride: int, padding: int, fill: float) -> np.ndarray:
    """Every window of the padded image: (n, y, x, channel, tap, tap) in float64."""
    pads = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    padded = np.pad(x.astype("float64"), pads, constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), axis=(1, 2))
    return view[:, ::stride, ::stride]


@pytest.mark.parametrize(
    ("image", "taps", "stride", "padding"),
    [
        ((1, 12, 12, 64), 3, 2, 1),
        ((2, 7, 9, 37), 3, 1, 1),
        ((1, 10, 10, 24), 2, 2, 0),
        ((1, 13, 13, 12), 5, 1, 2),
        ((1, 64, 64, 64), 3, 2, 1),
    ],
)
def test_max(image: tuple[int, ...], taps: int, stride: int, padding: int) -> None:
    options = {"pool_size": (taps, taps), "strides": stride, "padding": padding}
    func = lowered(
        {"x": (image, "float32")},
        lambda x: relax.op.nn.max_pool2d(x, layout="NHWC", **options),
    )
    (x,) = inputs_of(func)
    (actual,) = run(func, [x])
    expected = windows(x, taps, stride, padding, -np.inf).max((-1, -2))
    np.testing.assert_array_equal(actual, expected.astype("float32"))


@pytest.mark.parametrize("count_padding", [True, False])
def test_average_with_an_epilogue(count_padding: bool) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        pooled = relax.op.nn.avg_pool2d(
            x, (3, 3), 2, 1, count_include_pad=count_padding, layout="NHWC"
        )
        return relax.op.nn.relu(pooled)

    func = lowered({"x": ((1, 11, 11, 48), "float32")}, body)
    (x,) = inputs_of(func)
    (actual,) = run(func, [x])
    cells = windows(x, 3, 2, 1, 0.0).sum((-1, -2))
    ones = windows(np.ones_like(x), 3, 2, 1, 0.0).sum((-1, -2))
    expected = np.maximum(cells / (9.0 if count_padding else ones), 0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_producer_of_a_window_is_computed_once_per_row() -> None:
    shapes = {"x": ((1, 8, 8, 32), "float32"), "g": ((1, 1, 1, 32), "float32")}
    func = lowered(
        shapes,
        lambda x, g: relax.op.nn.max_pool2d(
            relax.op.multiply(x, g), (3, 3), padding=1, layout="NHWC"
        ),
    )
    x, g = inputs_of(func)
    (actual,) = run(func, [x, g])
    expected = windows(x * g, 3, 1, 1, -np.inf).max((-1, -2))
    np.testing.assert_array_equal(actual, expected.astype("float32"))


@pytest.mark.parametrize(
    "shape", [(1, 5, 5, 384), (2, 40, 40, 48), (1, 160, 160, 24), (1, 9, 7, 37)]
)
@pytest.mark.parametrize("keep", [True, False])
def test_mean_over_rows_and_columns(shape: tuple[int, ...], keep: bool) -> None:
    func = lowered({"x": (shape, "float32")}, lambda x: relax.op.mean(x, [1, 2], keep))
    (x,) = inputs_of(func)
    (actual,) = run(func, [x])
    expected = x.astype("float64").mean((1, 2), keepdims=keep)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_divisible_adaptive_average() -> None:
    func = lowered(
        {"x": ((1, 14, 14, 32), "float32")},
        lambda x: relax.op.nn.adaptive_avg_pool2d(x, (7, 7), layout="NHWC"),
    )
    (x,) = inputs_of(func)
    (actual,) = run(func, [x])
    expected = windows(x, 2, 2, 0, 0.0).mean((-1, -2))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 10, 11, 16), (2, 40, 40, 192)])
def test_ragged_adaptive_average(shape: tuple[int, ...]) -> None:
    func = lowered(
        {"x": (shape, "float32")},
        lambda x: relax.op.nn.relu(relax.op.nn.adaptive_avg_pool2d(x, (7, 7), layout="NHWC")),
    )
    (x,) = inputs_of(func)
    (actual,) = run(func, [x])
    edges = [[(i * size // 7, -(-(i + 1) * size // 7)) for i in range(7)] for size in shape[1:3]]
    expected = np.array(
        [[x[:, a:b, c:d].mean((1, 2), dtype="float64") for c, d in edges[1]] for a, b in edges[0]]
    ).transpose(2, 0, 1, 3)
    np.testing.assert_allclose(actual, np.maximum(expected, 0), rtol=1e-4, atol=1e-5)


def test_mean_of_a_product_that_also_leaves_the_group() -> None:
    shapes = {"x": ((1, 5, 5, 384), "float32"), "y": ((1, 5, 5, 384), "float32")}

    def body(x: relax.Expr, y: relax.Expr) -> tuple[relax.Expr, ...]:
        product = relax.BlockBuilder.current().emit(relax.op.multiply(x, y))
        return product, relax.op.mean(product, [1, 2], True)

    func = lowered(shapes, body)
    x, y = inputs_of(func, outputs=2)
    product, mean = run(func, [x, y], outputs=2)
    np.testing.assert_array_equal(product, x * y)
    expected = (x.astype("float64") * y).mean((1, 2), keepdims=True)
    np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-5)


def test_producer_of_a_mean_is_not_stored() -> None:
    shapes = {"x": ((1, 20, 20, 96), "float32"), "g": ((1, 1, 1, 96), "float32")}
    func = lowered(shapes, lambda x, g: relax.op.mean(relax.op.multiply(x, g), [1, 2], True))
    scheduled = RULE.schedule(func, TARGET, tunable=False).mod["main"]
    scopes = [str(buffer.scope()) for buffer in scheduled.body.block.alloc_buffers]
    assert scopes == ["local"]
    x, g = inputs_of(func)
    (actual,) = run(func, [x, g])
    expected = (x.astype("float64") * g).mean((1, 2), keepdims=True)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def channels_first() -> tirx.PrimFunc:
    return lowered({"x": ((1, 16, 8, 8), "float32")}, lambda x: relax.op.nn.max_pool2d(x, (2, 2)))


def last_axis() -> tirx.PrimFunc:
    return lowered({"x": ((8, 16), "float32")}, lambda x: relax.op.sum(x, -1))


def elementwise() -> tirx.PrimFunc:
    return lowered({"x": ((1, 10, 10, 16), "float32")}, relax.op.nn.relu)


def convolution() -> tirx.PrimFunc:
    shapes = {"x": ((1, 8, 8, 4), "float32"), "w": ((1, 1, 4, 16), "float32")}
    return lowered(
        shapes,
        lambda x, w: relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
    )


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (channels_first, "the innermost axis of the input is reduced, not kept"),
        (last_axis, "the innermost axis of the input is reduced, not kept"),
        (convolution, "the window reduction has a weight (convolution)"),
        (elementwise, "the group has 0 reductions; a pooling has one"),
    ],
)
def test_declines_with_the_reason(make: Callable[[], tirx.PrimFunc], reason: str) -> None:
    func = make()
    before = func.script()
    assert RULE.check(func, TARGET) == reason
    assert RULE.apply(func, TARGET) is None
    assert func.script() == before


def test_schedule_is_deterministic_and_leaves_its_input() -> None:
    func = lowered({"x": ((1, 20, 20, 96), "float32")}, lambda x: relax.op.mean(x, [1, 2]))
    before = func.script()
    first = RULE.schedule(func, TARGET, tunable=False).mod["main"]
    second = RULE.schedule(func, TARGET, tunable=False).mod["main"]
    assert tvm_ffi.structural_equal(first, second)
    assert func.script() == before
