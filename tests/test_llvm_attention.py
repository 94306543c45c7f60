"""The CPU attention rule: numerics in float64, memory, declined workloads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op
from tvmfuse.schedules.base import Scheduled, schedule_function
from tvmfuse.schedules.llvm.attention import AttentionRule
from workloads import Tensor, lowered

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
F32 = "float32"
Array = np.ndarray


def emit(expression: relax.Expr) -> relax.Var:
    """Bind a value, so that several uses share it."""
    return relax.BlockBuilder.current().emit(expression)


def scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    result = schedule_function(func, TARGET, (AttentionRule(),))
    assert isinstance(result, Scheduled), result
    return result.func


def run(func: tirx.PrimFunc, inputs: list[Array], output: tuple[int, ...]) -> Array:
    """Build and run a scheduled function; the output starts as NaN, so a gap shows."""
    public = func.with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": public})
    library = tvm.compile(module, target=TARGET)
    result = tvm.runtime.tensor(np.full(output, np.nan, F32))
    library["main"](*[tvm.runtime.tensor(value) for value in inputs], result)
    return result.numpy()


def plain_shapes(batch: int, heads: int, queries: int, keys: int, size: int) -> dict[str, Tensor]:
    return {
        "q": ((batch, heads, queries, size), F32),
        "k": ((batch, heads, keys, size), F32),
        "v": ((batch, heads, keys, size), F32),
    }


def plain(q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
    size = int(q.ty.shape[-1])
    scores = emit(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))))
    scaled = emit(op.multiply(scores, relax.const(size**-0.5, F32)))
    return op.matmul(op.nn.softmax(scaled, axis=-1), v)


def softmax(scores: Array) -> Array:
    highest = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(highest), 0.0, highest))
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total == 0, 1.0, total)


def reference(q: Array, k: Array, v: Array, mask: Array | float = 0.0) -> Array:
    q, k, v = (value.astype("float64") for value in (q, k, v))
    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + mask) @ v


def random_inputs(shapes: dict[str, Tensor]) -> list[Array]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape).astype(dtype) for shape, dtype in shapes.values()]


@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys", "size"),
    [
        (1, 4, 16, 16, 8),
        (2, 3, 40, 24, 20),  # a ragged register tile in both multiplications
        (1, 1, 70, 37, 16),  # one head: its query tiles are shared out, the last one moved
        (1, 5, 149, 149, 8),  # prime lengths: ragged tiles, scalar row sums, tails of maps
        (1, 2, 1, 19, 12),  # one query
    ],
)
def test_plain_attention(batch: int, heads: int, queries: int, keys: int, size: int) -> None:
    shapes = plain_shapes(batch, heads, queries, keys, size)
    func = scheduled(lowered(shapes, plain))
    values = random_inputs(shapes)
    result = run(func, values, (batch, heads, queries, size))
    np.testing.assert_allclose(result, reference(*values), rtol=0, atol=2e-5)


def packed(qkv: relax.Var, mask: relax.Var, zero: relax.Var) -> relax.Expr:
    """Packed projections, scaled twice, an additive mask, a guard for rows that are all masked."""
    length, heads, size = 24, 3, 16
    parts = []
    for number in range(3):
        begin = number * heads * size
        part = op.strided_slice(qkv, [1], [begin], [begin + heads * size])
        parts.append(op.permute_dims(op.reshape(part, (1, length, heads, size)), (0, 2, 1, 3)))
    scale = relax.const(size**-0.25, F32)
    q = op.multiply(parts[0], scale)
    k = op.multiply(op.permute_dims(parts[1], (0, 1, 3, 2)), scale)
    scores = emit(op.add(op.matmul(q, k), mask))
    weights = op.nn.softmax(scores, axis=-1)
    alive = op.astype(op.logical_not(op.equal(scores, relax.const(-np.inf, F32))), "int8")
    dead = op.logical_not(op.astype(op.max(alive, axis=-1, keepdims=True), "bool"))
    guarded = op.where(dead, zero, weights)
    heads_last = op.permute_dims(op.matmul(guarded, parts[2]), (0, 2, 1, 3))
    return op.reshape(heads_last, (length, heads * size))


PACKED: dict[str, Tensor] = {
    "qkv": ((24, 144), F32),
    "mask": ((1, 1, 24, 24), F32),
    "zero": ((), F32),
}


def test_packed_projections_with_mask_and_guard() -> None:
    func = scheduled(lowered(PACKED, packed))
    qkv = random_inputs({"qkv": PACKED["qkv"]})[0]
    mask = np.zeros((1, 1, 24, 24), F32)
    mask[..., 20:] = -np.inf
    mask[0, 0, 5] = -np.inf
    result = run(func, [qkv, mask, np.array(0.0, F32)], (24, 48))
    q, k, v = (qkv[:, 48 * n : 48 * n + 48].reshape(24, 3, 16).transpose(1, 0, 2) for n in range(3))
    wanted = reference(q, k, v, mask[0].astype("float64")).transpose(1, 0, 2).reshape(24, 48)
    assert np.all(result[5] == 0)
    np.testing.assert_allclose(result, wanted, rtol=0, atol=2e-5)


def test_the_scores_of_all_heads_are_never_stored() -> None:
    shapes = plain_shapes(1, 8, 256, 256, 16)
    func = scheduled(lowered(shapes, plain))
    public = func.with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": public})
    passes = tvm.s_tir.transform
    for step in (
        passes.PlanAndUpdateBufferAllocationLocation(),
        passes.ConvertBlocksToOpaque(),
        passes.CompactBufferAllocation(),
    ):
        module = step(module)
    sizes: list[int] = []

    def visit(block: tvm.s_tir.SBlock) -> None:
        sizes.extend(int(np.prod([int(d) for d in b.shape])) for b in block.alloc_buffers)

    tvm_ffi.structural_walk(module["main"].body, (tvm.s_tir.SBlock, visit))
    assert sizes and max(sizes) <= 64 * 256


def test_symbolic_batch() -> None:
    batch = tirx.Var("batch", "int64")
    shapes: dict[str, Tensor] = dict.fromkeys(("q", "k", "v"), ((batch, 2, 20, 12), F32))
    func = scheduled(lowered(shapes, plain))
    for count in (1, 3):
        values = random_inputs(plain_shapes(count, 2, 20, 20, 12))
        result = run(func, values, (count, 2, 20, 12))
        np.testing.assert_allclose(result, reference(*values), rtol=0, atol=2e-5)


def declined(shapes: dict[str, Tensor], body: Callable[..., relax.Expr]) -> str | None:
    return AttentionRule().check(lowered(shapes, body), TARGET)


def test_declines_with_a_reason() -> None:
    square: dict[str, Tensor] = {"a": ((8, 8), F32), "b": ((8, 8), F32)}
    assert declined(square, lambda a, b: op.matmul(a, b)) == (
        "the function has 1 matrix multiplications; attention has two"
    )
    assert declined(square, lambda a, b: op.matmul(op.matmul(a, b), b)) == (
        "there is no row reduction between the two multiplications"
    )
    length = tirx.Var("length", "int64")
    symbolic: dict[str, Tensor] = dict.fromkeys(("q", "k", "v"), ((1, 2, length, 8), F32))
    reason = declined(symbolic, plain)
    assert reason is not None and reason.endswith("has a symbolic extent besides the batch")

    def weights_too(q: relax.Var, k: relax.Var, v: relax.Var) -> tuple[relax.Expr, ...]:
        scores = emit(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))))
        weights = emit(op.nn.softmax(scores, axis=-1))
        return weights, op.matmul(weights, v)

    reason = declined(plain_shapes(1, 2, 8, 8, 8), weights_too)
    assert reason is not None and reason.endswith("is an output before the second multiplication")
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    func = lowered(plain_shapes(1, 2, 8, 8, 8), plain)
    assert AttentionRule().check(func, cuda) == "the target is cuda, not llvm"


def test_input_is_left_alone_and_the_schedule_is_deterministic() -> None:
    func = lowered(plain_shapes(1, 2, 40, 37, 16), plain)
    before = func.script()
    first, second = scheduled(func), scheduled(func)
    assert func.script() == before
    assert tvm_ffi.structural_equal(first, second)
