"""Channels-last convolutions for the CPU rules' tests: groups, a float64 reference, a runner."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.target import Target
from tvmfuse.schedules.base import ScheduleRule
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
    return execute(rule.schedule(func, TARGET, tunable=False).mod["main"], func, inputs, outputs)


def execute(
    scheduled: tirx.PrimFunc, func: tirx.PrimFunc, inputs: list[np.ndarray], outputs: int
) -> list[np.ndarray]:
    """Build and run a schedule of ``func``; the outputs."""
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
