"""Elementwise groups and the last resort on the CPU: numerics, structure, what is declined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from scipy import special
from tvm import relax, tirx
from tvm.script import tirx as T
from tvm.target import Target
from tvmfuse.schedules import Scheduled, ScheduleRule, rules_for, schedule_function
from tvmfuse.schedules.llvm.generic import GenericRule
from tvmfuse.schedules.llvm.injective import InjectiveRule
from tvmfuse.schedules.llvm.vector_math import vectorize_math
from workloads import Tensor, lowered

TARGET = Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})
op, nn = relax.op, relax.op.nn
ROWS = tirx.Var("rows", "int64")


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def inputs(*shapes: tuple, dtype: str = "float32") -> dict[str, Tensor]:
    return {name: (shape, dtype) for name, shape in zip("xyz", shapes, strict=False)}


def seven_times(function: Callable, value: relax.Expr | np.ndarray) -> relax.Expr | np.ndarray:
    for _ in range(7):
        value = function(value)
    return value


Workload = tuple[dict[str, Tensor], Callable, Callable]
INJECTIVE: dict[str, Workload] = {
    "add": (inputs((64, 384), (64, 384)), op.add, np.add),
    "gelu_parallel": (
        inputs((640, 1536)),
        nn.gelu,
        lambda x: x * 0.5 * (1 + special.erf(x / np.sqrt(2))),
    ),
    "broadcast": (
        inputs((8, 64, 48), (48,), (8, 1, 1)),
        lambda x, y, z: op.multiply(op.add(x, y), z),
        lambda x, y, z: (x + y) * z,
    ),
    "odd_last_axis": (inputs((64, 37), (37,)), op.add, np.add),
    "one_long_odd_axis": (inputs((100_003,)), op.exp, np.exp),
    "long_axis_in_chunks": (inputs((1_000_006,)), lambda x: op.add(x, x), lambda x: x + x),
    "one_element": (inputs((1, 1)), lambda x: op.add(op.exp(x), x), lambda x: np.exp(x) + x),
    "chain_that_doubles": (
        inputs((64, 37)),
        lambda x: seven_times(nn.silu, x),
        lambda x: seven_times(silu, x),
    ),
    "transposed": (
        inputs((64, 48, 33)),
        lambda x: op.negative(op.permute_dims(x, [2, 0, 1])),
        lambda x: -x.transpose(2, 0, 1),
    ),
    "heads_transposed": (
        inputs((1, 24, 6, 32)),
        lambda x: op.permute_dims(x, [0, 2, 1, 3]),
        lambda x: x.transpose(0, 2, 1, 3),
    ),
    "concatenated": (
        inputs((9, 24), (9, 24), (9, 48)),
        lambda x, y, z: nn.relu(op.concat([x, y, z], -1)),
        lambda x, y, z: np.maximum(np.concatenate([x, y, z], -1), 0),
    ),
    "concatenated_unevenly": (
        inputs((9, 7), (9, 10)),
        lambda x, y: op.concat([x, y], -1),
        lambda x, y: np.concatenate([x, y], -1),
    ),
    "slices_of_one_input": (
        inputs((20, 96)),
        lambda x: tuple(op.strided_slice(x, [1], [at], [at + 32]) for at in (0, 32, 64)),
        lambda x: (x[:, :32], x[:, 32:64], x[:, 64:]),
    ),
    "strided_slice": (
        inputs((20, 96)),
        lambda x: op.strided_slice(x, [1], [1], [95], [2]),
        lambda x: x[:, 1:95:2],
    ),
    "resize": (
        inputs((1, 5, 5, 48), (1, 10, 10, 48)),
        lambda x, y: op.add(
            op.image.resize2d(
                x,
                (10, 10),
                layout="NHWC",
                method="nearest_neighbor",
                coordinate_transformation_mode="asymmetric",
                rounding_method="floor",
            ),
            y,
        ),
        lambda x, y: x.repeat(2, 1).repeat(2, 2) + y,
    ),
    "padded": (
        inputs((20, 30)),
        lambda x: nn.pad(x, (1, 1, 2, 2)),
        lambda x: np.pad(x, ((1, 1), (2, 2))),
    ),
    "results_that_share_a_value": (
        inputs((64, 384), (64, 384)),
        lambda x, y: (nn.silu(x), op.multiply(nn.silu(x), y), op.exp(op.add(x, y))),
        lambda x, y: (silu(x), silu(x) * y, np.exp(x + y)),
    ),
    "result_that_feeds_another": (
        inputs((640, 384)),
        lambda x: (op.add(x, x), op.multiply(op.add(x, x), x), op.permute_dims(op.add(x, x))),
        lambda x: (x + x, (x + x) * x, (x + x).T),
    ),
    "expensive_value_broadcast": (
        inputs((64, 384), (384,)),
        lambda x, y: op.multiply(x, op.exp(y)),
        lambda x, y: x * np.exp(y),
    ),
    "integers": (inputs((64, 64), (64, 64), dtype="int8"), op.add, np.add),
    "symbolic_rows": (
        inputs((ROWS, 96), (ROWS, 96)),
        lambda x, y: (op.add(x, y), op.exp(op.add(x, y))),
        lambda x, y: (x + y, np.exp(x + y)),
    ),
    "symbolic_axis": (inputs((ROWS,)), op.exp, np.exp),
    "symbolic_transposed": (
        inputs((ROWS, 96)),
        lambda x: op.permute_dims(x, [1, 0]),
        lambda x: x.T,
    ),
}
GENERIC: dict[str, Workload] = {
    "argmax": (
        inputs((20, 30)),
        lambda x: op.argmax(op.add(x, x), -1),
        lambda x: x.argmax(-1),
    ),
    "matmul": (
        inputs((20, 30), (30, 40)),
        lambda x, y: nn.relu(op.matmul(x, y)),
        lambda x, y: np.maximum(x @ y, 0),
    ),
    "instance_norm": (
        inputs((2, 8, 10, 10), (8,), (8,)),
        lambda x, y, z: nn.instance_norm(x, y, z, channel_axis=1, axes=[2, 3]),
        lambda x, y, z: (
            ((x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5))
            * y[:, None, None]
            + z[:, None, None]
        ),
    ),
    "max_pool": (
        inputs((1, 8, 8, 16)),
        lambda x: nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC"),
        lambda x: x.reshape(1, 4, 2, 4, 2, 16).max((2, 4)),
    ),
    "softmax": (
        inputs((4, 6, 50)),
        lambda x: nn.softmax(x, -1),
        lambda x: special.softmax(x, -1),
    ),
}
CASES = [
    *((InjectiveRule(), *item) for item in INJECTIVE.items()),
    *((GenericRule(), *item) for item in (INJECTIVE | GENERIC).items()),
]


def scheduled(func: tirx.PrimFunc, rule: ScheduleRule) -> tirx.PrimFunc:
    result = schedule_function(func, TARGET, (rule,))
    assert isinstance(result, Scheduled), result
    return result.func


def compiled(func: tirx.PrimFunc) -> tvm.runtime.Executable:
    kernel = vectorize_math(func).with_attr("global_symbol", "main")
    return tvm.compile(tvm.IRModule({"main": kernel}), target=TARGET)


@pytest.mark.parametrize(
    ("rule", "name", "workload"), CASES, ids=[f"{rule.name}-{name}" for rule, name, _ in CASES]
)
def test_numerics(rule: ScheduleRule, name: str, workload: Workload) -> None:
    tensors, body, reference = workload
    func = lowered(tensors, body)
    random = np.random.default_rng(0)
    arrays = [
        (3 * random.standard_normal([37 if size is ROWS else size for size in shape])).astype(dtype)
        for shape, dtype in tensors.values()
    ]
    expected = reference(*[x.astype("float64") if x.dtype == "float32" else x for x in arrays])
    expected = expected if isinstance(expected, tuple) else (expected,)
    results = [
        tvm.runtime.tensor(np.full(np.shape(value), 77, str(parameter.dtype)))
        for value, parameter in zip(expected, func.params[len(tensors) :], strict=True)
    ]
    compiled(scheduled(func, rule))(*[tvm.runtime.tensor(x) for x in arrays], *results)
    for value, result in zip(expected, results, strict=True):
        np.testing.assert_allclose(result.numpy(), value, rtol=1e-5, atol=1e-5)


def root_loops(func: tirx.PrimFunc) -> list[tirx.For]:
    """The loops directly under the root block."""
    body = func.body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def test_results_over_one_domain_share_one_loop() -> None:
    tensors, body, _ = INJECTIVE["results_that_share_a_value"]
    assert len(root_loops(scheduled(lowered(tensors, body), InjectiveRule()))) == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [("add", tirx.ForKind.SERIAL), ("gelu_parallel", tirx.ForKind.PARALLEL)],
)
def test_only_large_work_is_parallel(name: str, kind: int) -> None:
    tensors, body, _ = INJECTIVE[name]
    (loop,) = root_loops(scheduled(lowered(tensors, body), InjectiveRule()))
    assert loop.kind == kind


def test_a_chain_of_cheap_operators_keeps_no_buffer() -> None:
    tensors, body, _ = INJECTIVE["broadcast"]
    func = lowered(tensors, body)
    assert func.body.block.alloc_buffers
    assert not scheduled(func, InjectiveRule()).body.block.alloc_buffers


@pytest.mark.parametrize("rule", [InjectiveRule(), GenericRule()])
def test_the_function_is_unchanged_and_the_schedule_repeatable(rule: ScheduleRule) -> None:
    tensors, body, _ = INJECTIVE["result_that_feeds_another"]
    func = lowered(tensors, body)
    before = tvm_ffi.structural_hash(func)
    first = scheduled(func, rule)
    assert tvm_ffi.structural_hash(func) == before
    tvm.ir.assert_structural_equal(first, scheduled(func, rule))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda x: op.sum(x, -1), "is not data parallel"),
        (lambda x: op.argmax(x, -1), "is not one store"),
    ],
)
def test_injective_declines(body: Callable, reason: str) -> None:
    func = lowered(inputs((16, 64)), body)
    answer = InjectiveRule().check(func, TARGET)
    assert answer is not None and answer.endswith(reason)
    assert InjectiveRule().apply(func, TARGET) is None


@T.prim_func(private=True, s_tir=True)
def prefix_sums(x: T.Buffer((64,), "float32"), total: T.Buffer((65,), "float32")) -> None:
    """A scan: every value needs the one before it."""
    for i in range(64):
        with T.sblock("step"):
            v = T.axis.spatial(64, i)
            total[v + 1] = total[v] + x[v]


def test_a_scan_stays_serial() -> None:
    answer = InjectiveRule().check(prefix_sums, TARGET)
    assert answer is not None and answer.endswith("reads what it writes")
    (loop,) = root_loops(scheduled(prefix_sums, GenericRule()))
    assert loop.kind == tirx.ForKind.SERIAL


def scatter(rows: int, columns: int) -> tirx.PrimFunc:
    """``scatter_elements``, which TVM lowers to loops without blocks."""
    data: Tensor = ((rows, columns), "float32")
    where: Tensor = ((rows, columns), "int64")
    return lowered(
        {"x": data, "i": where, "u": data}, lambda x, i, u: op.scatter_elements(x, i, u, 0)
    )


def test_statements_outside_blocks_are_left_alone() -> None:
    func = scatter(20, 30)
    answer = InjectiveRule().check(func, TARGET)
    assert answer == "there are statements outside blocks"
    tvm.ir.assert_structural_equal(
        scheduled(func, GenericRule()).body, func.body, map_free_vars=True
    )


def test_rules_for_a_target() -> None:
    names = [rule.name for rule in rules_for(TARGET)]
    assert names[-3:] == ["llvm.row", "llvm.injective", "llvm.generic"]
    with pytest.raises(ValueError, match="no schedule rules for target kind"):
        rules_for(Target("c"))
