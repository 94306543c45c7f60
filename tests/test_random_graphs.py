"""Random dataflow graphs: the plan is a partition with a reason for every edge, and the fused
module computes what TVM computes with nothing fused."""

from __future__ import annotations

import random

import numpy as np
import tvm
from fusion import check_partition, constant, random_inputs, run, run_stock
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from tvm import relax

from tvmfuse.graph import used_variables
from tvmfuse.options import Options
from tvmfuse.passes.build import build, finish_kernels
from tvmfuse.passes.fuse import fuse, plan_and_outline
from tvmfuse.passes.prepare import prepare
from tvmfuse.patterns import DEFAULT
from tvmfuse.reasons import Code
from tvmfuse.target import resolve_target

op = relax.op
Value = relax.Var

# Broadcastable against each other wherever the last extents agree.
SHAPES = ((4, 6), (6,), (4, 1), (1, 6), (2, 4, 6), (6, 4))

UNARY = (
    op.negative,
    op.abs,
    op.tanh,
    op.sigmoid,
    op.sin,
    op.cos,
    op.nn.relu,
    op.nn.silu,
    op.nn.gelu,
    lambda x: op.exp(op.clip(x, -4.0, 2.0)),
    lambda x: op.sqrt(op.abs(x)),
    lambda x: op.astype(op.astype(x, "float64"), "float32"),
    lambda x: op.multiply(x, relax.const(np.float32(0.5))),
)
BINARY = (op.add, op.subtract, op.multiply, op.maximum, op.minimum)
ROWS = (op.sum, op.mean, op.max, op.min)


def shape_of(value: Value) -> tuple[int, ...]:
    return tuple(int(extent) for extent in value.ty.shape.values)


def broadcast(a: Value, b: Value) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(shape_of(a), shape_of(b)))) <= 256
    except ValueError:
        return False


def product(a: Value, b: Value) -> relax.Expr | None:
    """A matmul of two values, the second transposed where that makes the extents agree."""
    left, right = shape_of(a), shape_of(b)
    batches_fit = left[:-2] == right[:-2] or not left[:-2] or not right[:-2]
    if min(len(left), len(right)) < 2 or not batches_fit:
        return None
    if left[-1] == right[-2]:
        return op.matmul(a, b)
    if left[-1] == right[-1]:
        axes = list(range(len(right)))
        return op.matmul(a, op.permute_dims(b, [*axes[:-2], axes[-1], axes[-2]]))
    return None


def moved(x: Value, choose: random.Random) -> relax.Expr:
    shape = shape_of(x)
    rank = len(shape)
    choice = choose.randrange(6)
    if choice == 0:
        return op.permute_dims(x, choose.sample(range(rank), rank))
    if choice == 1:
        return op.reshape(x, (int(np.prod(shape)),))
    if choice == 2:
        return op.expand_dims(x, [choose.randint(0, rank)])
    if choice == 3:
        begin = choose.randrange(shape[-1])
        return op.strided_slice(x, axes=[rank - 1], begin=[begin], end=[shape[-1]])
    if choice == 4:
        return op.concat([x, op.negative(x)], axis=choose.randrange(rank))
    index = relax.const(np.array([0, shape[0] - 1], "int64"), "int64")
    return op.take(x, index, axis=0)


KINDS = ("unary", "unary", "unary", "binary", "binary", "binary", "where", "reduce", "softmax")
KINDS += ("norm", "move", "move", "matmul", "matmul")


def step(values: list[Value], choose: random.Random) -> relax.Expr | None:
    """One more operator on values made so far, or None where the choice fits none."""
    # Mostly recent values: that makes chains; sometimes any: that makes branches.
    x, y = (choose.choice(choose.choice((values[-2:], values))) for _ in range(2))
    shape = shape_of(x)
    axis = choose.randrange(len(shape))
    kind = choose.choice(KINDS)
    if kind == "unary":
        return choose.choice(UNARY)(x)
    if kind in ("binary", "where"):
        if not broadcast(x, y):
            return None
        return op.where(op.greater(x, y), x, y) if kind == "where" else choose.choice(BINARY)(x, y)
    if kind == "reduce":
        keep = len(shape) == 1 or choose.random() < 0.5
        return choose.choice(ROWS)(x, axis=axis, keepdims=keep)
    if kind == "softmax":
        return op.nn.softmax(x, axis=axis)
    if kind == "norm":
        weights = constant(shape[-1], seed=1), constant(shape[-1], seed=2)
        # A large epsilon, so that rows of equal elements do not amplify rounding.
        return op.nn.layer_norm(x, *weights, axes=[-1], epsilon=0.1)
    return moved(x, choose) if kind == "move" else product(x, y)


def graph(steps: int, seed: int) -> tvm.IRModule:
    """``main`` of ``steps`` operators; what nothing reads is an output, and now and then others.

    The graph of fewer steps is a prefix of it, so a failure shrinks to the step that matters.
    """
    choose = random.Random(seed)
    builder = relax.BlockBuilder()
    shapes = choose.sample(SHAPES, 3)
    params = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            values: list[Value] = list(params)
            read: set[Value] = set()
            also: set[Value] = set()
            while len(values) < len(params) + steps:
                made = step(values, choose)
                if made is None:
                    continue
                read.update(used_variables(made))
                values.append(builder.emit(made))
                also.update(values[-1:] if choose.random() < 0.1 else [])
            leaving = [v for v in values[len(params) :] if v not in read or v in also]
            outputs = [builder.emit_output(value) for value in leaving]
        builder.emit_func_output(relax.Tuple(outputs))
    return relax.transform.CanonicalizeBindings()(builder.get())


GRAPHS = st.builds(graph, st.integers(1, 14), st.integers(0, 2**32 - 1))
FUEL = st.one_of(st.none(), st.integers(0, 3))
COMMON = {
    "derandomize": True,
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=150, **COMMON)
@given(GRAPHS, FUEL)
def test_the_plan_is_a_partition_with_a_reason_for_every_edge(
    mod: tvm.IRModule, fuel: int | None
) -> None:
    note(mod.script())
    options = Options(verify=False, fuel=fuel)
    prepared = prepare(mod, options)
    outlined, plans, groups = plan_and_outline(prepared, DEFAULT, options, {})
    plan = plans["main"]
    check_partition(plan)
    assert set(plan.edges) == set(plan.graph.edges())
    owner = {node: number for number, match in enumerate(plan.matches) for node in match.nodes}
    for (producer, consumer), reason in plan.edges.items():
        together = producer in owner and owner.get(producer) == owner.get(consumer)
        assert (reason.code is Code.FUSED) == together, (producer, consumer, reason)
        assert reason.text
    fusions = sum(len(match.nodes) > 1 for match in plan.matches)
    assert fuel is None or fusions <= fuel
    relax.analysis.well_formed(outlined)
    assert len(groups["main"]) == len(plan.matches)
    again = plan_and_outline(prepare(mod, options), DEFAULT, options, {})[1]["main"]
    assert (again.matches, again.edges) == (plan.matches, plan.edges), "not deterministic"


# No shrinking, which would compile for minutes: run graph(steps, seed) by hand with fewer steps.
@settings(max_examples=25, phases=[Phase.generate], **COMMON)
@given(GRAPHS, FUEL)
def test_fused_equals_unfused(mod: tvm.IRModule, fuel: int | None) -> None:
    note(mod.script())
    options = Options(verify=False, fuel=fuel)
    target = resolve_target("llvm")
    fused = fuse(prepare(mod, options), target, DEFAULT, options)
    inputs = random_inputs(mod)
    found = run(build(finish_kernels(fused.scheduled, target), target), inputs)
    expected = run_stock(mod, inputs)
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == want.dtype
        size = float(np.sqrt(np.mean(np.square(want, dtype="float64")))) if want.size else 0.0
        # The constant is for sums that cancel to nothing.
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * size + 1e-4)
