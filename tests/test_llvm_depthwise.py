"""llvm.depthwise: numbers against float64, and declines with the reason."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvmfuse.schedules.llvm.conv import ConvRule
from tvmfuse.schedules.llvm.depthwise import DepthwiseRule
from window_workloads import TARGET, Image, close, conv2d, inputs_of, plain, reference, run
from workloads import lowered


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
