"""cuda.injective: elementwise groups on the emulated device, vector accesses, declines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cuda_kernels import A100, H100, compiled, cubin, random_inputs, run, schedule_with
from scipy.special import erf
from tvm import relax, tirx
from tvm.relax import op
from tvmfuse.schedules.cuda.injective import InjectiveRule
from workloads import Tensor, lowered

RULE = InjectiveRule()
LARGE = (256, 1024)  # enough for four elements per thread on an H100


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def test_a_chain_moves_128_bit_vectors_and_computes_one_erf_per_element() -> None:
    func = lowered({"x": (LARGE, "float32")}, op.nn.gelu)
    scheduled = schedule_with(RULE, func)
    _, source = compiled(scheduled)
    assert source.count("*(float4*)") == 4, "one vector load and one vector store"
    (x,) = random_inputs(func, 1)
    (actual,), session = run(scheduled, [x])
    np.testing.assert_allclose(actual, gelu(x.astype("float64")), rtol=1e-5, atol=1e-6)
    assert session.findings == ()
    assert len(session.launches) == 1


def test_two_outputs_of_which_one_needs_the_other() -> None:
    def body(x: relax.Var, y: relax.Var) -> tuple[relax.Expr, ...]:
        total = relax.BlockBuilder.current().emit(op.add(x, y))
        return total, op.nn.relu(total)

    func = lowered({"x": ((3, 40), "float16"), "y": ((40,), "float16")}, body)
    x, y = random_inputs(func, 2)
    (total, positive), session = run(schedule_with(RULE, func, A100), [x, y], A100)
    np.testing.assert_array_equal(total, x + y)
    np.testing.assert_array_equal(positive, np.maximum(x + y, 0))
    assert session.findings == ()


def test_outputs_of_unlike_size_share_the_grid() -> None:
    def body(x: relax.Var, y: relax.Var) -> tuple[relax.Expr, ...]:
        return op.multiply(x, y), op.negative(y)

    func = lowered({"x": ((7, 50), "float32"), "y": ((50,), "float32")}, body)
    x, y = random_inputs(func, 2)
    (product, negated), session = run(schedule_with(RULE, func), [x, y])
    np.testing.assert_array_equal(product, x * y)
    np.testing.assert_array_equal(negated, -y)
    assert session.findings == ()


MOVES: dict[str, tuple[dict[str, Tensor], Callable, Callable]] = {
    "transpose": (
        {"x": ((2, 33, 40), "float32")},
        lambda x: op.permute_dims(x, [0, 2, 1]),
        lambda x: x.transpose(0, 2, 1),
    ),
    "reshape of a slice": (
        {"x": ((16, 96), "float16")},
        lambda x: op.reshape(op.strided_slice(x, [1], [32], [64]), (4, 4, 32)),
        lambda x: x[:, 32:64].reshape(4, 4, 32),
    ),
    "ragged concatenation": (
        {"x": ((5, 7), "float32"), "y": ((5, 9), "float32")},
        lambda x, y: op.concat([x, y], axis=1),
        lambda x, y: np.concatenate([x, y], 1),
    ),
    "concatenation of whole vectors": (
        {"x": ((256, 512), "float32"), "y": ((256, 512), "float32")},
        lambda x, y: op.concat([x, y], axis=1),
        lambda x, y: np.concatenate([x, y], 1),
    ),
    "comparison": (
        {"x": ((256, 1024), "float32")},
        lambda x: op.greater(x, relax.const(0.0, "float32")),
        lambda x: x > 0,
    ),
    "padding": (
        {"x": ((4, 1024), "float32")},
        lambda x: op.nn.pad(x, (1, 1, 2, 2)),
        lambda x: np.pad(x, ((1, 1), (2, 2))),
    ),
}


@pytest.mark.parametrize("name", list(MOVES))
def test_moves_are_exact(name: str) -> None:
    tensors, body, reference = MOVES[name]
    func = lowered(tensors, body)
    inputs = random_inputs(func, len(tensors))
    (actual,), session = run(schedule_with(RULE, func), inputs)
    np.testing.assert_array_equal(actual, reference(*inputs))
    assert session.findings == ()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_transpose_with_an_epilogue_goes_through_shared_memory(dtype: str) -> None:
    func = lowered(
        {"x": ((1, 40, 6, 33), dtype), "b": ((40,), dtype)},
        lambda x, b: op.nn.relu(op.add(op.permute_dims(x, [0, 2, 3, 1]), b)),
    )
    x, b = random_inputs(func, 2)
    scheduled = schedule_with(RULE, func)
    _, source = compiled(scheduled)
    assert source.count("__shared__") == 1
    (actual,), session = run(scheduled, [x, b])
    np.testing.assert_array_equal(actual, np.maximum(x.transpose(0, 2, 3, 1) + b, 0))
    assert session.findings == ()


def test_symbolic_size() -> None:
    count = tirx.Var("count", "int64")
    func = lowered({"x": ((count, 40), "float32")}, lambda x: op.multiply(x, x))
    x = np.random.default_rng(2).standard_normal((11, 40)).astype("float32")
    (actual,), session = run(schedule_with(RULE, func), [x])
    np.testing.assert_array_equal(actual, x * x)
    assert session.findings == ()


def test_a_value_used_very_often_is_kept_in_a_register() -> None:
    def body(x: relax.Var) -> relax.Expr:
        for _ in range(10):  # inlined, 2 ** 10 loads
            x = relax.BlockBuilder.current().emit(op.multiply(x, x))
        return x

    func = lowered({"x": ((4, 32), "float32")}, body)
    x = np.random.default_rng(2).uniform(0.99, 1.01, (4, 32)).astype("float32")
    (actual,), session = run(schedule_with(RULE, func), [x])
    np.testing.assert_allclose(actual, x.astype("float64") ** 1024, rtol=2e-3)
    assert session.findings == ()


def test_declines() -> None:
    func = lowered({"x": ((4, 8), "float32")}, lambda x: op.sum(x, axis=1))
    assert str(RULE.check(func, H100)).endswith("is a reduction")
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    pair = lowered(
        {"x": ((n, 8), "float32"), "y": ((m, 8), "float32")},
        lambda x, y: (op.negative(x), op.negative(y)),
    )
    assert str(RULE.check(pair, H100)).startswith("the outputs have unlike symbolic sizes: n *")


def test_nvcc_accepts_it(tmp_path: Path) -> None:
    func = lowered({"x": (LARGE, "float16")}, op.nn.gelu)
    _, source = compiled(schedule_with(RULE, func))
    cubin(source, tmp_path)
