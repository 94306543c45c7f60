"""cuda.conv: implicit GEMM on the emulated device against NumPy in float64, and declines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from cuda_kernels import A100, H100, compiled, cubin, random_inputs, run, schedule_with
from numpy_reference import evaluate
from tvm import relax, tirx
from tvm.relax import op
from tvmfuse.schedules.cuda.conv import ConvRule
from workloads import Tensor, group_module, lowered

F32 = "float32"
RULE = ConvRule()


@dataclass(frozen=True)
class Conv:
    """A convolution: its operands' shapes, attributes, and what runs before and after it."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    layout: str = "NCHW"
    strides: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    more: tuple[tuple[int, ...], ...] = ()
    before: Callable[..., relax.Expr] | None = None
    after: Callable[..., relax.Expr] | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        shapes = (self.x, self.w, *self.more)
        return {f"x{at}": (shape, F32) for at, shape in enumerate(shapes)}

    def body(self, x: relax.Var, w: relax.Var, *more: relax.Var) -> relax.Expr:
        result = op.nn.conv2d(
            self.before(x, *more) if self.before else x,
            w,
            strides=self.strides,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            data_layout=self.layout,
            kernel_layout="OIHW" if self.layout == "NCHW" else "HWIO",
        )
        return self.after(result, *more) if self.after else result

    @property
    def func(self) -> tirx.PrimFunc:
        return lowered(self.tensors, self.body)


def bias_relu(y: relax.Expr, b: relax.Var) -> relax.Expr:
    return op.nn.relu(op.add(y, b))


CASES = {
    "NHWC 3x3": Conv(
        (1, 7, 7, 8), (3, 3, 8, 20), "NHWC", padding=1, more=((20,),), after=bias_relu
    ),
    "NCHW 3x3": Conv(
        (1, 8, 7, 7), (20, 8, 3, 3), padding=1, more=((1, 20, 1, 1),), after=bias_relu
    ),
    "NHWC stride 2, batch 2": Conv((2, 9, 9, 8), (3, 3, 8, 20), "NHWC", strides=2, padding=1),
    "NCHW stride 2, 3 channels": Conv((1, 3, 16, 16), (16, 3, 3, 3), strides=2, padding=1),
    "NHWC 1x1": Conv((1, 6, 6, 32), (1, 1, 32, 40), "NHWC", more=((40,),), after=bias_relu),
    "NCHW 1x1, scaled input": Conv(
        (1, 32, 5, 5),
        (40, 32, 1, 1),
        more=((1, 32, 1, 1),),
        before=op.multiply,
    ),
    "dilated": Conv((1, 9, 9, 8), (3, 3, 8, 16), "NHWC", padding=2, dilation=2),
    "grouped NCHW": Conv((1, 16, 6, 6), (40, 8, 3, 3), padding=1, groups=2),
    "grouped NHWC": Conv((1, 6, 6, 16), (3, 3, 8, 40), "NHWC", padding=1, groups=2),
    "one pixel": Conv((1, 96, 1, 1), (24, 96, 1, 1), more=((1, 24, 1, 1),), after=bias_relu),
    "residual": Conv(
        (1, 6, 6, 8), (3, 3, 8, 8), "NHWC", padding=1, more=((1, 6, 6, 8),), after=op.add
    ),
}


def reference(case: Conv, inputs: list[np.ndarray]) -> np.ndarray:
    (expected,) = evaluate(group_module(case.tensors, case.body), inputs, "fused")
    return expected


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    case = CASES[name]
    func = case.func
    inputs = random_inputs(func, len(case.tensors))
    (actual,), session = run(schedule_with(RULE, func), inputs)
    np.testing.assert_allclose(actual, reference(case, inputs), rtol=2e-5, atol=3e-5)
    assert session.findings == ()
    assert len(session.launches) == 1


@pytest.mark.parametrize("target", [H100, A100], ids=["sm_90a", "sm_80"])
def test_nvcc_takes_the_source(target, tmp_path: Path) -> None:
    func = Conv((1, 40, 40, 96), (3, 3, 96, 24), "NHWC", padding=1).func
    _, source = compiled(schedule_with(RULE, func, target), target)
    cubin(source, tmp_path, str(target.attrs["arch"]))


def test_the_image_is_not_stored_unrolled() -> None:
    func = Conv((1, 7, 7, 8), (3, 3, 8, 20), "NHWC", padding=1).func
    scheduled = RULE.schedule(func, H100, tunable=False).mod["main"]
    scopes = {
        line.split('scope="')[1].split('"')[0] if 'scope="' in line else "global"
        for line in scheduled.script().splitlines()
        if "sblock_alloc_buffer" in line
    }
    assert scopes == {"shared", "local"}


DECLINED = {
    "depthwise": (
        Conv((1, 8, 9, 9), (8, 1, 3, 3), groups=8),
        "a depthwise convolution: each group has one channel",
    ),
    "norm after": (
        Conv((1, 8, 9, 9), (8, 8, 3, 3), after=lambda y: op.nn.softmax(y, 1)),
        "the group has 3 reductions; a matmul kernel has one",
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_declines(name: str) -> None:
    case, reason = DECLINED[name]
    func = case.func
    before = func.script()
    assert RULE.check(func, H100) == reason
    assert func.script() == before


def test_declines_a_matmul() -> None:
    func = lowered({"x": ((8, 8), F32), "w": ((8, 8), F32)}, op.matmul)
    reason = "both operands are indexed by plain iterators; this is a matmul"
    assert RULE.check(func, H100) == reason
