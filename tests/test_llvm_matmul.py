"""The CPU matrix multiplication rule: numerics in float64, structure, declined workloads."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op
from tvmfuse.schedules import analysis
from tvmfuse.schedules.base import Scheduled, schedule_function
from tvmfuse.schedules.llvm.machine import machine_of
from tvmfuse.schedules.llvm.matmul import MatmulRule
from tvmfuse.schedules.llvm.microkernel import Problem, ranked_tiles
from workloads import Tensor, lowered

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
F32 = "float32"
Array = np.ndarray


def scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function as the rule schedules it; fails if the rule declines."""
    result = schedule_function(func, TARGET, (MatmulRule(),))
    assert isinstance(result, Scheduled), result
    return result.func


def run(func: tirx.PrimFunc, inputs: list[Array], outputs: list[tuple[int, ...]]) -> list[Array]:
    """Build and run a scheduled function; outputs start as NaN, so a gap shows."""
    public = func.with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": public})
    library = tvm.compile(module, target=TARGET)
    dtypes = [str(p.dtype) for p in func.params[len(inputs) :]]
    results = [
        tvm.runtime.tensor(np.full(shape, np.nan if "float" in dtype else -77, dtype))
        for shape, dtype in zip(outputs, dtypes, strict=True)
    ]
    library["main"](*[tvm.runtime.tensor(value) for value in inputs], *results)
    return [result.numpy() for result in results]


def random_inputs(shapes: dict[str, Tensor]) -> list[Array]:
    generator = np.random.default_rng(0)
    return [
        generator.standard_normal(shape).astype(dtype)
        if "float" in dtype
        else generator.integers(-5, 6, shape).astype(dtype)
        for shape, dtype in shapes.values()
    ]


def check(
    shapes: dict[str, Tensor],
    body: Callable[..., relax.Expr],
    reference: Callable[..., Array],
    reduction: int,
) -> tirx.PrimFunc:
    """Schedule, run and compare; the tolerance grows with the reduction length."""
    func = scheduled(lowered(shapes, body))
    values = random_inputs(shapes)
    wanted = reference(*[value.astype("float64") for value in values])
    (result,) = run(func, values, [wanted.shape])
    tolerance = 8 * np.finfo("float32").eps * math.sqrt(reduction) * 4
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(result, wanted, rtol=0, atol=tolerance * scale)
    return func


def gelu(value: Array) -> Array:
    return 0.5 * value * (1 + np.vectorize(math.erf)(value / math.sqrt(2)))


@pytest.mark.parametrize(
    ("rows", "reduction", "columns"),
    [(64, 48, 96), (1, 64, 128), (5, 33, 40), (67, 17, 96), (31, 16, 77), (29, 8, 3), (9, 5, 1)],
)
def test_plain_multiplication_with_divisible_and_ragged_extents(
    rows: int, reduction: int, columns: int
) -> None:
    check(
        {"a": ((rows, reduction), F32), "b": ((reduction, columns), F32)},
        lambda a, b: op.matmul(a, b),
        lambda a, b: a @ b,
        reduction,
    )


def test_bias_gelu_and_reshape_run_on_the_tile_without_a_full_buffer() -> None:
    func = check(
        {"x": ((1, 24, 32), F32), "w": ((32, 96), F32), "b": ((96,), F32)},
        lambda x, w, b: op.reshape(
            op.nn.gelu(op.reshape(op.add(op.matmul(op.reshape(x, (24, 32)), w), b), (1, 24, 96))),
            (24, 96),
        ),
        lambda x, w, b: gelu(x[0] @ w + b),
        32,
    )
    root = func.body.block
    # The full result is one buffer; what is allocated besides it is cut to the tile by TVM.
    public = func.with_attr("global_symbol", "main")
    compacted = tvm.s_tir.transform.PlanAndUpdateBufferAllocationLocation()(
        tvm.IRModule({"main": public})
    )
    assert not compacted["main"].body.block.alloc_buffers, root.alloc_buffers


def test_residual_after_reshape() -> None:
    check(
        {"x": ((64, 24), F32), "w": ((24, 48), F32), "b": ((48,), F32), "r": ((1, 64, 48), F32)},
        lambda x, w, b, r: op.add(op.reshape(op.add(op.matmul(x, w), b), (1, 64, 48)), r),
        lambda x, w, b, r: (x @ w + b)[None] + r,
        24,
    )


def test_output_permuted_into_heads_whose_size_the_widest_tile_straddles() -> None:
    check(
        {"x": ((16, 24), F32), "w": ((24, 96), F32)},
        lambda x, w: op.permute_dims(op.reshape(op.matmul(x, w), (1, 16, 4, 24)), (0, 2, 1, 3)),
        lambda x, w: (x @ w).reshape(1, 16, 4, 24).transpose(0, 2, 1, 3),
        24,
    )


def test_batches_and_shared_right_operand() -> None:
    check(
        {"a": ((3, 2, 13, 8), F32), "b": ((3, 2, 8, 21), F32)},
        lambda a, b: op.nn.relu(op.matmul(a, b)),
        lambda a, b: np.maximum(a @ b, 0),
        8,
    )
    check(
        {"a": ((3, 7, 8), F32), "b": ((8, 32), F32)},
        lambda a, b: op.matmul(a, b),
        lambda a, b: a @ b,
        8,
    )


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_transposed_weights(rows: int) -> None:
    check(
        {"a": ((rows, 48), F32), "w": ((52, 48), F32), "b": ((52,), F32)},
        lambda a, w, b: op.add(op.matmul(a, op.permute_dims(w)), b),
        lambda a, w, b: a @ w.T + b,
        48,
    )


def test_transposed_left_operand_and_vectors() -> None:
    check(
        {"a": ((24, 40), F32), "b": ((24, 32), F32)},
        lambda a, b: op.matmul(op.permute_dims(a), b),
        lambda a, b: a.T @ b,
        24,
    )
    check(
        {"a": ((40, 24), F32), "b": ((24,), F32)},
        lambda a, b: op.matmul(a, b),
        lambda a, b: a @ b,
        24,
    )
    check(
        {"a": ((24,), F32), "b": ((24, 40), F32)},
        lambda a, b: op.matmul(a, b),
        lambda a, b: a @ b,
        24,
    )


def test_dear_producer_is_computed_once_per_element() -> None:
    func = check(
        {"a": ((24, 32), F32), "b": ((32, 64), F32)},
        lambda a, b: op.matmul(op.tanh(op.exp(a)), b),
        lambda a, b: np.tanh(np.exp(a)) @ b,
        32,
    )
    infos = analysis.blocks(tvm.s_tir.Schedule(func))
    with_calls = [i for i in infos if i.store and analysis.calls_of(i.store.value)]
    assert with_calls and all(i.is_injective for i in with_calls)


def test_integer_and_half_precision_inputs() -> None:
    check(
        {"a": ((24, 32), "int8"), "b": ((32, 64), "int8")},
        lambda a, b: op.matmul(a, b, out_dtype="int32"),
        lambda a, b: a @ b,
        32,
    )
    check(
        {"a": ((24, 32), "float16"), "b": ((32, 64), "float16")},
        lambda a, b: op.matmul(a, b, out_dtype="float32"),
        lambda a, b: a @ b,
        32,
    )


def test_several_outputs() -> None:
    def body(a: relax.Var, b: relax.Var, c: relax.Var) -> tuple[relax.Expr, ...]:
        total = relax.BlockBuilder.current().emit(op.matmul(a, b))
        return total, op.nn.relu(op.add(total, c))

    shapes: dict[str, Tensor] = {"a": ((24, 32), F32), "b": ((32, 48), F32), "c": ((48,), F32)}
    func = scheduled(lowered(shapes, body))
    a, b, c = random_inputs(shapes)
    total, rectified = run(func, [a, b, c], [(24, 48), (24, 48)])
    wanted = a.astype("float64") @ b
    np.testing.assert_allclose(total, wanted, rtol=0, atol=1e-4)
    np.testing.assert_allclose(rectified, np.maximum(wanted + c, 0), rtol=0, atol=1e-4)


@pytest.mark.parametrize("columns", [96, 77])
def test_symbolic_rows(columns: int) -> None:
    rows = tirx.Var("rows", "int64")
    func = scheduled(
        lowered(
            {"a": ((rows, 32), F32), "b": ((32, columns), F32)},
            lambda a, b: op.nn.relu(op.matmul(a, b)),
        )
    )
    for count in (1, 7, 40):
        a, b = random_inputs({"a": ((count, 32), F32), "b": ((32, columns), F32)})
        (result,) = run(func, [a, b], [(count, columns)])
        wanted = np.maximum(a.astype("float64") @ b, 0)
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-4)


def test_symbolic_columns_and_reduction() -> None:
    length = tirx.Var("length", "int64")
    func = scheduled(
        lowered(
            {"a": ((2, length, length), F32), "b": ((2, length, 24), F32)},
            lambda a, b: op.matmul(a, b),
        )
    )
    for count in (1, 19):
        a, b = random_inputs({"a": ((2, count, count), F32), "b": ((2, count, 24), F32)})
        (result,) = run(func, [a, b], [(2, count, 24)])
        np.testing.assert_allclose(result, a.astype("float64") @ b, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("shapes", "body", "reason"),
    [
        (
            {"a": ((8, 8), F32)},
            lambda a: op.nn.relu(a),
            "the function has 0 reductions; this rule takes one",
        ),
        (
            {"a": ((8, 8), F32), "b": ((8, 8), F32)},
            lambda a, b: op.matmul(op.matmul(a, b), b),
            "the function has 2 reductions; this rule takes one",
        ),
        (
            {"a": ((8, 8), F32)},
            lambda a: op.sum(a, axis=1),
            "a_red does not sum products",
        ),
        (
            {"x": ((1, 4, 8, 8), F32), "w": ((4, 4, 3, 3), F32)},
            lambda x, w: op.nn.conv2d(x, w),
            "conv2d_nchw indexes an operand by more than one iterator",
        ),
        (
            {"a": ((8, 8), "float16"), "b": ((8, 8), "float16")},
            lambda a, b: op.matmul(a, b),
            "matmul sums in float16",
        ),
    ],
)
def test_declines_with_a_reason(
    shapes: dict[str, Tensor], body: Callable[..., relax.Expr], reason: str
) -> None:
    func = lowered(shapes, body)
    assert MatmulRule().check(func, TARGET) == reason


def test_declines_another_target() -> None:
    func = lowered({"a": ((8, 8), F32), "b": ((8, 8), F32)}, lambda a, b: op.matmul(a, b))
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    assert MatmulRule().check(func, cuda) == "the target is cuda, not llvm"


def test_input_is_left_alone_and_the_schedule_is_deterministic() -> None:
    func = lowered(
        {"a": ((67, 32), F32), "b": ((32, 77), F32), "c": ((77,), F32)},
        lambda a, b, c: op.add(op.matmul(a, b), c),
    )
    before = func.script()
    first, second = scheduled(func), scheduled(func)
    assert func.script() == before
    assert tvm_ffi.structural_equal(first, second)


def parallel_loops(func: tirx.PrimFunc) -> int:
    found: list[tirx.For] = []

    def visit(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.PARALLEL:
            found.append(loop)

    tvm_ffi.structural_walk(func.body, (tirx.For, visit))
    return len(found)


def test_packs_a_panel_where_the_rows_of_the_right_operand_alias_in_the_cache() -> None:
    shapes: dict[str, Tensor] = {"a": ((45, 256), F32), "b": ((256, 1024), F32)}
    func = check(shapes, lambda a, b: op.matmul(a, b), lambda a, b: a @ b, 256)
    copies = [i for i in analysis.blocks(tvm.s_tir.Schedule(func)) if analysis.is_copy(i)]
    right = func.params[1]
    assert any(buffer.same_as(right) for info in copies for buffer in info.reads)


def test_parallel_only_where_the_work_pays_for_the_fork() -> None:
    def of(size: int) -> int:
        shapes: dict[str, Tensor] = {"a": ((size, size), F32), "b": ((size, size), F32)}
        return parallel_loops(scheduled(lowered(shapes, lambda a, b: op.matmul(a, b))))

    assert (of(16), of(64)) == (0, 1)


def test_tiles_fit_the_registers_and_the_problem() -> None:
    for cpu in ("znver4", "x86-64-v3", "x86-64"):
        machine = machine_of(tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2}))
        for rows, columns in ((64, 384), (1, 4096), (3, 5), (None, 96)):
            tiles = ranked_tiles(Problem(1, rows, columns, 128), machine, machine.lanes)
            assert tiles
            for tile in tiles:
                assert tile.columns <= columns and tile.rows <= (rows or 14)
                sums = tile.rows * tile.vectors
                assert sums + 1 <= machine.vector_registers
