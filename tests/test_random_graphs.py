"""Random dataflow graphs: the plan is a partition with a reason for every edge, and the fused
module computes what TVM computes with nothing fused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from fusion import check_partition, constant, random_inputs, run, run_stock
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tvm import relax

from tvmfuse.options import Options
from tvmfuse.passes.build import build, finish_kernels
from tvmfuse.passes.fuse import fuse, plan_and_outline
from tvmfuse.passes.prepare import prepare
from tvmfuse.patterns import DEFAULT
from tvmfuse.reasons import Code
from tvmfuse.target import resolve_target

op = relax.op
Draw = Callable[[st.SearchStrategy], object]
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


def product(values: list[Value], draw: Draw) -> relax.Expr | None:
    """A matmul of two values with the second transposed where that makes the extents agree."""
    a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
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


def moved(x: Value, draw: Draw) -> relax.Expr:
    shape = shape_of(x)
    choice = draw(st.integers(0, 5))
    if choice == 0:
        return op.permute_dims(x, draw(st.permutations(range(len(shape)))))
    if choice == 1:
        return op.reshape(x, (int(np.prod(shape)),))
    if choice == 2:
        return op.expand_dims(x, [draw(st.integers(0, len(shape)))])
    if choice == 3:
        end = draw(st.integers(1, shape[-1]))
        return op.strided_slice(x, axes=[len(shape) - 1], begin=[end - 1], end=[shape[-1]])
    if choice == 4:
        return op.concat([x, op.negative(x)], axis=draw(st.integers(0, len(shape) - 1)))
    index = relax.const(np.array([0, shape[0] - 1], "int64"), "int64")
    return op.take(x, index, axis=0)


def step(values: list[Value], draw: Draw) -> relax.Expr | None:
    """One more operator on values made so far, or None where the draw fits none."""
    x = draw(st.sampled_from(values))
    shape = shape_of(x)
    axis = draw(st.integers(0, len(shape) - 1))
    kind = draw(
        st.sampled_from(["unary", "binary", "where", "reduce", "softmax", "norm", "move", "matmul"])
    )
    if kind == "unary":
        return draw(st.sampled_from(UNARY))(x)
    if kind in ("binary", "where"):
        fitting = [value for value in values if broadcast(x, value)]
        y = draw(st.sampled_from(fitting))
        if kind == "where":
            return op.where(op.greater(x, y), x, y)
        return draw(st.sampled_from(BINARY))(x, y)
    if kind == "reduce":
        keep = len(shape) == 1 or draw(st.booleans())
        return draw(st.sampled_from(ROWS))(x, axis=axis, keepdims=keep)
    if kind == "softmax":
        return op.nn.softmax(x, axis=axis)
    if kind == "norm":
        width = shape[-1]
        weights = constant(width, seed=1), constant(width, seed=2)
        # A large epsilon, so that rows of equal elements do not amplify rounding.
        return op.nn.layer_norm(x, *weights, axes=[-1], epsilon=0.1)
    return moved(x, draw) if kind == "move" else product(values, draw)


@st.composite
def graphs(draw: Draw) -> tvm.IRModule:
    """``main`` of 3 to 12 steps over two or three inputs; the last values and some others leave."""
    builder = relax.BlockBuilder()
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=2, max_size=3))
    params = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            values: list[Value] = list(params)
            for _ in range(draw(st.integers(3, 12))):
                # Mostly recent values: that makes chains; sometimes any: that makes branches.
                pool = values[-3:] if draw(st.booleans()) else values
                made = step(pool, draw)
                if made is not None:
                    values.append(builder.emit(made))
            made_here = values[len(params) :] or [builder.emit(op.negative(params[0]))]
            leaving = {len(made_here) - 1}
            leaving |= draw(st.sets(st.integers(0, len(made_here) - 1), max_size=2))
            outputs = [builder.emit_output(made_here[i]) for i in sorted(leaving)]
        builder.emit_func_output(relax.Tuple(outputs))
    return relax.transform.CanonicalizeBindings()(builder.get())


FUEL = st.one_of(st.none(), st.integers(0, 3))
COMMON = {
    "derandomize": True,
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=150, **COMMON)
@given(graphs(), FUEL)
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


@settings(max_examples=25, **COMMON)
@given(graphs(), FUEL)
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
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * size)
