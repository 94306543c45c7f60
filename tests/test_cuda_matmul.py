"""cuda.matmul and cuda.gemv: numbers on the emulated device, one kernel, and declines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cuda_kernels import A100, H100, compiled, cubin, random_inputs, run, schedule_with
from numpy_reference import evaluate
from tvm import relax, tirx
from tvm.relax import op
from tvmfuse.schedules import analysis
from tvmfuse.schedules.cuda import contraction
from tvmfuse.schedules.cuda.gemv import GemvRule
from tvmfuse.schedules.cuda.machine import Machine
from tvmfuse.schedules.cuda.matmul import MatmulRule
from tvmfuse.schedules.cuda.matmul_simt import choose_tile
from workloads import Tensor, group_module, lowered

F32 = "float32"
Body = Callable[..., relax.Expr | tuple[relax.Expr, ...]]


def tensors(*shapes: tuple[int, ...], dtype: str = F32) -> dict[str, Tensor]:
    return {f"x{at}": (shape, dtype) for at, shape in enumerate(shapes)}


def emit(expr: relax.Expr) -> relax.Var:
    return relax.BlockBuilder.current().emit(expr)


def linear(x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
    return op.add(op.matmul(x, w), b)


def packed_outputs(x: relax.Var, w: relax.Var) -> tuple[relax.Expr, ...]:
    product = emit(op.matmul(x, w))
    return tuple(op.strided_slice(product, [1], [at], [at + 32]) for at in (0, 32, 64))


def two_outputs(x: relax.Var, w: relax.Var, b: relax.Var) -> tuple[relax.Expr, ...]:
    hidden = emit(linear(x, w, b))
    return hidden, op.nn.gelu(hidden)


def heads(x: relax.Var, w: relax.Var, b: relax.Var, r: relax.Var) -> relax.Expr:
    split = op.reshape(op.nn.gelu(linear(x, w, b)), (2, 15, 3, 32))
    return op.add(op.permute_dims(split, (0, 2, 1, 3)), r)


CASES: dict[str, tuple[dict[str, Tensor], Body]] = {
    "bias": (tensors((64, 96), (96, 160), (160,)), linear),
    "gelu between reshapes": (
        tensors((1, 32, 96), (96, 128), (128,)),
        lambda x, w, b: op.nn.gelu(linear(op.reshape(x, (32, 96)), w, b)),
    ),
    "reshape and residual": (
        tensors((32, 64), (64, 96), (96,), (1, 32, 96)),
        lambda x, w, b, r: op.add(op.reshape(linear(x, w, b), (1, 32, 96)), r),
    ),
    "ragged in every direction": (
        tensors((33, 77), (77, 101), (101,)),
        lambda x, w, b: op.nn.relu(linear(x, w, b)),
    ),
    "transposed right": (
        tensors((40, 48), (70, 48)),
        lambda x, w: op.matmul(x, op.permute_dims(w)),
    ),
    "transposed left": (
        tensors((48, 40), (48, 70)),
        lambda x, w: op.matmul(op.permute_dims(x), w),
    ),
    "batched": (tensors((2, 3, 20, 32), (2, 3, 32, 24)), op.matmul),
    "batched left only": (tensors((3, 20, 32), (32, 24)), op.matmul),
    "batched right only": (tensors((20, 32), (3, 32, 24)), op.matmul),
    "row scale and silu before": (
        tensors((32, 48), (32, 1), (48, 64)),
        lambda x, s, w: op.matmul(op.nn.silu(op.multiply(x, s)), w),
    ),
    "input is also the residual": (
        tensors((32, 32), (32, 32)),
        lambda x, w: op.add(op.matmul(x, w), x),
    ),
    "an output read by the next": (tensors((32, 32), (32, 64), (64,)), two_outputs),
    "heads permuted": (tensors((2, 15, 48), (48, 96), (96,), (2, 3, 15, 32)), heads),
    "packed output sliced": (tensors((20, 32), (32, 96)), packed_outputs),
    "broadcast epilogue": (
        tensors((20, 32), (32, 24), (2, 20, 24)),
        lambda x, w, r: op.add(op.matmul(x, w), r),
    ),
    "one row": (tensors((1, 96), (96, 200), (200,)), linear),
    "one row, transposed": (
        tensors((1, 96), (50, 96)),
        lambda x, w: op.matmul(op.nn.silu(x), op.permute_dims(w)),
    ),
    "vector": (tensors((96,), (96, 50)), op.matmul),
    "five rows, ragged": (
        tensors((5, 100), (37, 100)),
        lambda x, w: op.matmul(x, op.permute_dims(w)),
    ),
    "rows too large for shared memory": (tensors((8, 2048), (2048, 8)), op.matmul),
    "one column": (tensors((40, 96), (96, 1)), op.matmul),
    "batched rows": (tensors((6, 1, 64), (6, 64, 45)), op.matmul),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    shapes, body = CASES[name]
    func = lowered(shapes, body)
    inputs = random_inputs(func, len(shapes))
    actual, session = run(schedule_with(MatmulRule(), func), inputs)
    expected = evaluate(group_module(shapes, body), inputs, "fused")
    depth = max(max(shape) for shape, _ in shapes.values())
    for one, other in zip(actual, expected, strict=True):
        # Rounding errors of a sum of n products grow like the root of n, and their size like it.
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=3e-7 * depth)
    assert session.findings == ()
    assert len(session.launches) == 1


@pytest.mark.parametrize("rows", [24, 45])
def test_symbolic_rows(rows: int) -> None:
    extent = tirx.Var("m", "int64")
    func = lowered(tensors((2, extent, 64), (64, 70), (70,)), linear)
    generator = np.random.default_rng(0)
    inputs = [
        generator.standard_normal(shape).astype(F32) for shape in [(2, rows, 64), (64, 70), (70,)]
    ]
    (actual,), session = run(schedule_with(MatmulRule(), func), inputs)
    x, w, b = (array.astype("float64") for array in inputs)
    np.testing.assert_allclose(actual, x @ w + b, rtol=2e-5, atol=2e-5)
    assert session.findings == ()


@pytest.mark.parametrize("rows", [1, 32])
def test_half_inputs_accumulate_in_float(rows: int) -> None:
    shapes = tensors((rows, 512), (512, 64), dtype="float16")
    func = lowered(shapes, lambda x, w: op.matmul(x, w, out_dtype=F32))
    inputs = random_inputs(func, 2)
    (actual,), _ = run(schedule_with(MatmulRule(), func), inputs)
    expected = inputs[0].astype("float64") @ inputs[1].astype("float64")
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


def half_linear(x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
    return op.astype(op.nn.gelu(op.add(op.matmul(x, w, out_dtype=F32), b)), "float16")


def test_tensor_cores_with_an_epilogue() -> None:
    shapes = {"x": ((50, 72), "float16"), "w": ((72, 40), "float16"), "b": ((40,), F32)}
    func = lowered(shapes, half_linear)
    inputs = random_inputs(func, 3)
    scheduled = schedule_with(MatmulRule(), func)
    assert "wmma.accumulator" in scheduled.func.script()
    (actual,), session = run(scheduled, inputs)
    (expected,) = evaluate(group_module(shapes, half_linear), inputs, "fused")
    np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3)
    assert session.findings == ()


def test_nvcc_takes_the_tensor_core_source(tmp_path: Path) -> None:
    func = lowered(
        tensors((2048, 64), (64, 1536), dtype="float16"),
        lambda x, w: op.matmul(x, w, out_dtype=F32),
    )
    _, source = compiled(schedule_with(MatmulRule(), func))
    assert "wmma" in source
    cubin(source, tmp_path)


@pytest.mark.parametrize(
    "shape", [(64, 384, 1152), (64, 1536, 384), (1000, 512, 1000), (1, 384, 1152)]
)
@pytest.mark.parametrize("target", [H100, A100], ids=["sm_90a", "sm_80"])
def test_nvcc_takes_the_source(shape: tuple[int, int, int], target, tmp_path: Path) -> None:
    m, k, n = shape
    func = lowered(tensors((m, k), (k, n), (n,)), linear)
    _, source = compiled(schedule_with(MatmulRule(), func, target), target)
    cubin(source, tmp_path, str(target.attrs["arch"]))


def test_small_grids_get_small_tiles() -> None:
    machine = Machine.of(H100)

    def tile(m: int, k: int, n: int) -> int:
        func = lowered(tensors((m, k), (k, n)), op.matmul)
        found = contraction.find(analysis.blocks(analysis.s_tir.Schedule(func)))
        assert isinstance(found, contraction.Contraction)
        chosen = choose_tile(found, machine)
        return chosen.rows * chosen.columns

    assert tile(64, 384, 384) < tile(512, 384, 4096) <= tile(8192, 512, 8192)


DECLINED: dict[str, tuple[dict[str, Tensor], Body, str]] = {
    "square": (
        tensors((32, 32)),
        lambda x: op.matmul(x, x),
        "both operands are the same buffer",
    ),
    "dot": (tensors((96,), (96,)), op.matmul, "each batch entry is a dot product"),
    "conv": (
        tensors((1, 8, 9, 9), (8, 8, 3, 3)),
        op.nn.conv2d,
        "an operand is not indexed by plain iterators; this is a convolution",
    ),
    "norm before": (
        tensors((32, 32), (32, 32)),
        lambda x, w: op.matmul(op.nn.softmax(x), w),
        "the group has 3 reductions; a matmul kernel has one",
    ),
    "prologue is an output": (
        tensors((32, 32), (32, 32)),
        lambda x, w: (lambda y: (y, op.matmul(y, w)))(emit(op.nn.relu(x))),
        "block compute writes an output that the contraction reads",
    ),
    "outer product": (
        tensors((32, 1), (1, 32)),
        op.matmul,
        "block matmul sums one product only",
    ),
    "elementwise": (
        tensors((32, 32), (32, 32)),
        op.add,
        "the group has 0 reductions; a matmul kernel has one",
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_declines(name: str) -> None:
    shapes, body, reason = DECLINED[name]
    func = lowered(shapes, body)
    before = func.script()
    assert MatmulRule().check(func, H100) == reason
    assert func.script() == before


def test_gemv_declines_many_rows() -> None:
    func = lowered(tensors((64, 32), (32, 64)), op.matmul)
    assert GemvRule().check(func, H100) == "neither side of the product has at most 8 rows"
