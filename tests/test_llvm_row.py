"""Softmax, norms and reductions on the CPU: numerics, structure, and what is declined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.target import Target
from tvmfuse.schedules import Scheduled, schedule_function
from tvmfuse.schedules.llvm.row import RowRule
from tvmfuse.schedules.llvm.vector_math import vectorize_math
from workloads import Tensor, lowered

TARGET = Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})
RULE = RowRule()
nn = relax.op.nn
ROWS = tirx.Var("rows", "int64")


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    exponentials = np.exp(x - x.max(axis, keepdims=True))
    return exponentials / exponentials.sum(axis, keepdims=True)


def layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def norm_inputs(*shape: int) -> dict[str, Tensor]:
    last = (shape[-1],)
    return {"x": (shape, "float32"), "g": (last, "float32"), "b": (last, "float32")}


def one(*shape: int | tirx.Var, dtype: str = "float32") -> dict[str, Tensor]:
    return {"x": (shape, dtype)}


# name: inputs, Relax body, float64 reference (one array or a tuple).
Workload = tuple[dict[str, Tensor], Callable, Callable]
WORKLOADS: dict[str, Workload] = {
    "softmax": (one(4, 6, 64), lambda x: nn.softmax(x, -1), softmax),
    "softmax_odd_row": (one(3, 197), lambda x: nn.softmax(x, -1), softmax),
    "softmax_short_row": (one(5, 3), lambda x: nn.softmax(x, -1), softmax),
    "softmax_one_row": (one(1, 1000), lambda x: nn.softmax(x, -1), softmax),
    "softmax_axis_1": (one(4, 64, 48), lambda x: nn.softmax(x, 1), lambda x: softmax(x, 1)),
    "softmax_transposed": (
        one(4, 6, 50),
        lambda x: relax.op.permute_dims(nn.softmax(x, -1), [0, 2, 1]),
        lambda x: softmax(x).transpose(0, 2, 1),
    ),
    "masked_softmax_reshaped": (
        {"x": ((2, 8, 64), "float32"), "m": ((1, 8, 64), "float32")},
        lambda x, m: relax.op.reshape(nn.softmax(relax.op.add(x, m), -1), (16, 64)),
        lambda x, m: softmax(x + m).reshape(16, 64),
    ),
    "log_softmax": (
        one(6, 100),
        lambda x: nn.log_softmax(x, -1),
        lambda x: np.log(softmax(x)),
    ),
    "layer_norm": (
        norm_inputs(1, 64, 384),
        lambda x, g, b: nn.layer_norm(x, g, b, axes=[-1]),
        layer_norm,
    ),
    "layer_norm_large_parallel": (
        norm_inputs(700, 1030),
        lambda x, g, b: nn.layer_norm(x, g, b, axes=[-1]),
        layer_norm,
    ),
    "layer_norm_two_axes": (
        {name: ((3, 10, 12)[name != "x" :], "float32") for name in "xgb"},
        lambda x, g, b: nn.layer_norm(x, g, b, axes=[-2, -1]),
        lambda x, g, b: layer_norm(x.reshape(3, 120), g.reshape(120), b.reshape(120)).reshape(
            x.shape
        ),
    ),
    "add_layer_norm_both_results": (
        {"y": ((7, 96), "float32"), **norm_inputs(7, 96)},
        lambda y, x, g, b: (
            relax.op.add(x, y),
            nn.layer_norm(relax.op.add(x, y), g, b, axes=[-1]),
        ),
        lambda y, x, g, b: (x + y, layer_norm(x + y, g, b)),
    ),
    "silu_layer_norm_staged": (
        norm_inputs(7, 96),
        lambda x, g, b: nn.layer_norm(nn.silu(x), g, b, axes=[-1]),
        lambda x, g, b: layer_norm(silu(x), g, b),
    ),
    "embedding_layer_norm": (
        {"i": ((9,), "int64"), "t": ((8, 96), "float32"), **norm_inputs(9, 96)},
        lambda i, t, x, g, b: nn.layer_norm(
            relax.op.add(relax.op.take(t, i, 0), x), g, b, axes=[-1]
        ),
        lambda i, t, x, g, b: layer_norm(t[i] + x, g, b),
    ),
    "rms_norm": (
        {"x": ((5, 256), "float32"), "g": ((256,), "float32")},
        lambda x, g: nn.rms_norm(x, g, axes=[-1]),
        lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g,
    ),
    "l2_normalize": (
        one(5, 96),
        lambda x: relax.op.divide(
            x, relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), -1, True))
        ),
        lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True)),
    ),
    "mean_and_variance": (
        one(5, 96),
        lambda x: (relax.op.mean(x, -1), relax.op.variance(x, -1)),
        lambda x: (x.mean(-1), x.var(-1)),
    ),
    "sum_of_everything": (one(5, 7, 96), relax.op.sum, np.sum),
    "sum_of_everything_parallel": (
        one(50, 1001, 96),
        lambda x: relax.op.sum(relax.op.multiply(x, x)),
        lambda x: (x * x).sum(),
    ),
    "softmax_one_long_row": (one(1, 1_000_000), lambda x: nn.softmax(x, -1), softmax),
    "sum_columns": (one(1, 64, 384), lambda x: relax.op.sum(x, [1]), lambda x: x.sum(1)),
    "max_odd_columns": (one(3, 64, 37), lambda x: relax.op.max(x, [1]), lambda x: x.max(1)),
    "sum_outer_and_inner": (
        one(5, 20, 96),
        lambda x: relax.op.sum(x, [0, 2]),
        lambda x: x.sum((0, 2)),
    ),
    "rows_and_columns": (
        one(20, 96),
        lambda x: (relax.op.sum(x, 0), relax.op.sum(x, 1)),
        lambda x: (x.sum(0), x.sum(1)),
    ),
    "silu_and_global_mean": (
        one(1, 10, 10, 96),
        lambda x: (nn.silu(x), relax.op.mean(nn.silu(x), [1, 2], True)),
        lambda x: (silu(x), silu(x).mean((1, 2), keepdims=True)),
    ),
    "integer_sum": (one(5, 96, dtype="int64"), lambda x: relax.op.sum(x, 1), lambda x: x.sum(1)),
    "symbolic_softmax": (one(ROWS, 96), lambda x: nn.softmax(x, -1), softmax),
    "symbolic_softmax_odd_row": (one(ROWS, 4, 50), lambda x: nn.softmax(x, -1), softmax),
    "symbolic_long_odd_row": (one(ROWS, 9001), lambda x: relax.op.max(x, -1), lambda x: x.max(-1)),
    "symbolic_row": (one(20, ROWS), lambda x: relax.op.sum(x, 1), lambda x: x.sum(1)),
    "symbolic_add_layer_norm": (
        {"y": ((ROWS, 96), "float32"), **norm_inputs(1, 96), "x": ((ROWS, 96), "float32")},
        lambda y, x, g, b: (
            relax.op.add(x, y),
            nn.layer_norm(relax.op.add(x, y), g, b, axes=[-1]),
        ),
        lambda y, x, g, b: (x + y, layer_norm(x + y, g, b)),
    ),
    "symbolic_columns": (
        one(1, ROWS, 96),
        lambda x: relax.op.mean(x, 1),
        lambda x: x.mean(1),
    ),
}


def array(shape: tuple, dtype: str, random: np.random.Generator, rows: int = 37) -> np.ndarray:
    """Random values; a symbolic extent becomes ``rows``."""
    sizes = [extent if isinstance(extent, int) else rows for extent in shape]
    if dtype.startswith("int"):
        return random.integers(0, 8, sizes).astype(dtype)
    return random.standard_normal(sizes).astype(dtype)


def scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    result = schedule_function(func, TARGET, (RULE,))
    assert isinstance(result, Scheduled), result
    return result.func


@pytest.mark.parametrize("name", WORKLOADS)
def test_numerics(name: str) -> None:
    inputs, body, reference = WORKLOADS[name]
    func = lowered(inputs, body)
    random = np.random.default_rng(0)
    arrays = [array(shape, dtype, random) for shape, dtype in inputs.values()]
    expected = reference(*[x.astype("float64") if x.dtype == "float32" else x for x in arrays])
    expected = expected if isinstance(expected, tuple) else (expected,)
    results = [
        tvm.runtime.tensor(np.full(np.shape(value), 77, str(parameter.dtype)))
        for value, parameter in zip(expected, func.params[len(inputs) :], strict=True)
    ]
    kernel = vectorize_math(scheduled(func)).with_attr("global_symbol", "main")
    compiled = tvm.compile(tvm.IRModule({"main": kernel}), target=TARGET)
    compiled(*[tvm.runtime.tensor(x) for x in arrays], *results)
    for value, result in zip(expected, results, strict=True):
        # float32 rounding of sums of up to some thousand terms of size 1.
        np.testing.assert_allclose(result.numpy(), value, rtol=2e-5, atol=2e-5)


def root_loops(func: tirx.PrimFunc) -> list[tirx.For]:
    """The loops directly under the root block."""
    body = func.body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


@pytest.mark.parametrize(
    "name", ["softmax", "layer_norm", "add_layer_norm_both_results", "silu_layer_norm_staged"]
)
def test_everything_of_a_row_is_in_one_loop(name: str) -> None:
    assert len(root_loops(scheduled(lowered(*WORKLOADS[name][:2])))) == 1


def test_only_large_work_is_parallel() -> None:
    def is_parallel(name: str) -> bool:
        (loop,) = root_loops(scheduled(lowered(*WORKLOADS[name][:2])))
        return loop.kind == tirx.ForKind.PARALLEL

    assert is_parallel("layer_norm_large_parallel")
    assert not is_parallel("layer_norm")


def test_the_function_is_unchanged_and_the_schedule_repeatable() -> None:
    func = lowered(*WORKLOADS["add_layer_norm_both_results"][:2])
    before = tvm_ffi.structural_hash(func)
    first = scheduled(func)
    assert tvm_ffi.structural_hash(func) == before
    tvm.ir.assert_structural_equal(first, scheduled(func))


@pytest.mark.parametrize(
    ("inputs", "body", "reason"),
    [
        (one(8, 8), relax.op.exp, "no block reduces"),
        (
            {"x": ((8, 16), "float32"), "w": ((16, 32), "float32")},
            relax.op.matmul,
            "has no operand that all its iterators index: a contraction",
        ),
        (
            one(1, 8, 8, 16),
            lambda x: nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC"),
            "reads its operand through a computed index",
        ),
        (one(8, 16), lambda x: relax.op.argmax(x, 1), "is not one store"),
    ],
)
def test_declines(inputs: dict[str, Tensor], body: Callable, reason: str) -> None:
    func = lowered(inputs, body)
    answer = RULE.check(func, TARGET)
    assert answer is not None and answer.endswith(reason)
    assert RULE.apply(func, TARGET) is None


def test_declines_what_is_scheduled() -> None:
    schedule = s_tir.Schedule(lowered(*WORKLOADS["sum_columns"][:2]))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.parallel(schedule.get_loops(block)[1])
    answer = RULE.check(schedule.mod["main"], TARGET)
    assert answer is not None and answer.endswith("has been scheduled already")
