"""cuda.pool and cuda.depthwise: windows on the emulated device against float64, and declines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuda_kernels import A100, H100, compiled, cubin, random_inputs, run, schedule_with
from tvm import relax
from tvm.relax import op
from tvmfuse.schedules.cuda.depthwise import DepthwiseRule
from tvmfuse.schedules.cuda.generic import GenericRule
from tvmfuse.schedules.cuda.pool import PoolRule
from tvmfuse.schedules.cuda.row import RowRule
from workloads import lowered

POOL, DEPTHWISE = PoolRule(), DepthwiseRule()


def windows(x: np.ndarray, taps: int, stride: int, padding: int, fill: float) -> np.ndarray:
    """Every window of a padded NCHW image: (n, channel, y, x, tap, tap) in float64."""
    pads = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    padded = np.pad(x.astype("float64"), pads, constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), axis=(2, 3))
    return view[:, :, ::stride, ::stride]


def to_nchw(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_max_pool_with_an_epilogue(layout: str) -> None:
    shape = (1, 6, 13, 13) if layout == "NCHW" else (1, 13, 13, 6)
    func = lowered(
        {"x": (shape, "float32")},
        lambda x: op.nn.relu(op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout=layout)),
    )
    (x,) = random_inputs(func, 1)
    (actual,), session = run(schedule_with(POOL, func), [x])
    if layout == "NHWC":
        x, actual = to_nchw(x), to_nchw(actual)
    expected = np.maximum(windows(x, 3, 2, 1, -np.inf).max((-1, -2)), 0)
    np.testing.assert_array_equal(actual, expected.astype("float32"))
    assert session.findings == ()
    assert len(session.launches) == 1


def test_average_pool_of_half_accumulates_in_float32() -> None:
    func = lowered(
        {"x": ((1, 4, 12, 12), "float16")},
        lambda x: op.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1), count_include_pad=True),
    )
    (x,) = random_inputs(func, 1)
    scheduled = schedule_with(POOL, func)
    (actual,), session = run(scheduled, [x])
    expected = windows(x, 3, 1, 1, 0.0).mean((-1, -2))
    np.testing.assert_allclose(actual.astype("float64"), expected, rtol=2e-3, atol=1e-3)
    assert session.findings == ()


def test_pool_then_layout_change() -> None:
    def body(x: relax.Var) -> relax.Expr:
        pooled = op.nn.max_pool2d(x, (2, 2), (2, 2))
        return op.reshape(op.permute_dims(pooled, [0, 2, 3, 1]), (16, 8))

    func = lowered({"x": ((1, 8, 8, 8), "float32")}, body)
    (x,) = random_inputs(func, 1)
    (actual,), session = run(schedule_with(POOL, func), [x])
    expected = windows(x, 2, 2, 0, 0.0).max((-1, -2)).transpose(0, 2, 3, 1).reshape(16, 8)
    np.testing.assert_array_equal(actual, expected.astype("float32"))
    assert session.findings == ()


def test_global_pooling_is_a_row() -> None:
    func = lowered(
        {"x": ((1, 6, 14, 14), "float32")}, lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1))
    )
    assert str(POOL.check(func, H100)).endswith("has no moving window")
    (x,) = random_inputs(func, 1)
    (actual,), session = run(schedule_with(RowRule(), func), [x])
    expected = x.astype("float64").mean((2, 3), keepdims=True)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert session.findings == ()


@pytest.mark.parametrize(("taps", "stride", "dtype"), [(3, 1, "float32"), (5, 2, "float16")])
def test_depthwise_with_bias_and_clip(taps: int, stride: int, dtype: str) -> None:
    channels, padding = 6, taps // 2

    def body(x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
        moved = op.nn.conv2d(
            x, w, strides=(stride, stride), padding=(padding, padding), groups=channels
        )
        return op.clip(op.add(moved, b), 0, 6)

    tensors = {
        "x": ((1, channels, 15, 15), dtype),
        "w": ((channels, 1, taps, taps), dtype),
        "b": ((1, channels, 1, 1), dtype),
    }
    func = lowered(tensors, body)
    x, w, b = random_inputs(func, 3)
    (actual,), session = run(schedule_with(DEPTHWISE, func, A100), [x, w, b], A100)
    view = windows(x, taps, stride, padding, 0.0)
    total = (view * w.astype("float64")[:, 0][None, :, None, None]).sum((-1, -2))
    expected = np.clip(total + b, 0, 6)
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(actual.astype("float64"), expected, rtol=tolerance, atol=tolerance)
    assert session.findings == ()


def test_depthwise_nhwc_reads_vectors_of_channels() -> None:
    def body(x: relax.Var, w: relax.Var) -> relax.Expr:
        moved = op.nn.conv2d(
            x, w, padding=(1, 1), groups=16, data_layout="NHWC", kernel_layout="HWIO"
        )
        return op.nn.relu(moved)

    shape = (1, 60, 60, 16)  # enough for two elements per thread on an A100
    func = lowered({"x": (shape, "float32"), "w": ((3, 3, 1, 16), "float32")}, body)
    x, w = random_inputs(func, 2)
    scheduled = schedule_with(DEPTHWISE, func, A100)
    _, source = compiled(scheduled, A100)
    assert "*(float2*)(x_ptr" in source
    (actual,), session = run(scheduled, [x, w], A100)
    view = windows(to_nchw(x), 3, 1, 1, 0.0)
    taps = w.astype("float64")[:, :, 0].transpose(2, 0, 1)
    expected = np.maximum((view * taps[None, :, None, None]).sum((-1, -2)), 0)
    np.testing.assert_allclose(to_nchw(actual), expected, rtol=1e-5, atol=1e-5)
    assert session.findings == ()


def test_declines() -> None:
    dense = lowered(
        {"x": ((1, 8, 9, 9), "float32"), "w": ((4, 8, 3, 3), "float32")},
        lambda x, w: op.nn.conv2d(x, w),
    )
    assert str(DEPTHWISE.check(dense, H100)).endswith("has an output channel that the data lacks")
    assert str(POOL.check(dense, H100)).endswith("reads 2 operands; pooling reads one")
    norm = lowered({"x": ((4, 8), "float32")}, lambda x: op.nn.softmax(x, -1))
    assert str(POOL.check(norm, H100)).endswith("has no moving window")
    assert DEPTHWISE.check(norm, H100) == (
        "the group has 2 reductions; a depthwise convolution has one"
    )


def test_generic_makes_a_dense_convolution_one_kernel() -> None:
    func = lowered(
        {"x": ((1, 8, 9, 9), "float32"), "w": ((4, 8, 3, 3), "float32")},
        lambda x, w: op.nn.relu(op.nn.conv2d(x, w)),
    )
    x, w = random_inputs(func, 2)
    (actual,), session = run(schedule_with(GenericRule(), func), [x, w])
    expected = np.einsum("ncyxij,ocij->noyx", windows(x, 3, 1, 0, 0.0), w.astype("float64"))
    np.testing.assert_allclose(actual, np.maximum(expected, 0), rtol=1e-5, atol=1e-5)
    assert session.findings == ()


def test_nvcc_accepts_it(tmp_path: Path) -> None:
    func = lowered(
        {"x": ((1, 8, 12, 12), "float16")}, lambda x: op.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1))
    )
    _, source = compiled(schedule_with(POOL, func))
    cubin(source, tmp_path)
