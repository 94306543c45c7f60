"""Constants, batch norms and per-channel scales folded at compile time, and what is not."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from fusion import KEEP, check_numbers, constant, module, plan_of, random_inputs, scalar
from numpy_reference import evaluate
from tvm import relax

from tvmfuse.graph import build_graph
from tvmfuse.passes.fold import MAX_GROWTH_ELEMENTS, fold_constants, scalar_fill
from tvmfuse.passes.fold_affine import FOLD_AFFINE
from tvmfuse.passes.prepare import prepare
from tvmfuse.passes.rewriter import Rewrite, rewrite_module

op = relax.op


def rewritten(mod: tvm.IRModule, *rewrites: Rewrite) -> tuple[tvm.IRModule, list[str]]:
    result = relax.transform.CanonicalizeBindings()(rewrite_module(mod, rewrites))
    return result, [node.operator.removeprefix("relax.") for node in build_graph(result).nodes]


def same_values(before: tvm.IRModule, after: tvm.IRModule, tolerance: float = 1e-6) -> None:
    inputs = random_inputs(before)
    for want, got in zip(evaluate(before, inputs), evaluate(after, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


INDEX = relax.const(np.array([2, 0, 1], "int64"), "int64")
A, B = constant(4, 6, seed=1), constant(4, 6, seed=2)
CONSTANT_EXPRESSIONS = {
    "add": lambda: op.add(A, B),
    "divide": lambda: op.divide(A, B),
    "maximum": lambda: op.maximum(A, B),
    "where": lambda: op.where(op.greater(A, B), A, B),
    "permute": lambda: op.reshape(op.permute_dims(A), (4, 6)),
    "broadcast": lambda: op.broadcast_to(constant(6, seed=3), (4, 6)),
    "concat": lambda: op.concat([constant(1, 6, seed=4), constant(3, 6, seed=5)], axis=0),
    "slice": lambda: op.strided_slice(constant(9, 6), axes=[0], begin=[1], end=[8], strides=[2]),
    "take": lambda: op.concat([op.take(A, INDEX, axis=0), op.take(B, INDEX, axis=0)], axis=0),
    "astype": lambda: op.astype(op.astype(A, "int32"), "float32"),
    "full": lambda: op.full((4, 6), scalar(2.5), "float32"),
    "expand": lambda: op.squeeze(op.expand_dims(A, [0]), [0]),
}


@pytest.mark.parametrize("name", CONSTANT_EXPRESSIONS)
def test_operators_of_constants_are_evaluated(name: str) -> None:
    rows = {"take": 6}.get(name, 4)
    mod = module({"x": (rows, 6)}, lambda emit, x: op.add(x, CONSTANT_EXPRESSIONS[name]()))
    after, operators = rewritten(mod, fold_constants)
    assert operators == ["add"]
    same_values(mod, after)


def test_integers_stay_integers() -> None:
    shift = relax.const(np.array([1, 2], "int64"), "int64")
    mod = module({"x": ((2,), "int64")}, lambda emit, x: op.add(x, op.add(shift, shift)))
    after, operators = rewritten(mod, fold_constants)
    assert operators == ["add"]
    folded = after["main"].body.blocks[0].bindings[0].value.args[1]
    assert str(folded.ty.dtype) == "int64"
    np.testing.assert_array_equal(folded.value.numpy(), [2, 4])


def test_a_constant_is_not_blown_up() -> None:
    rows = MAX_GROWTH_ELEMENTS // 8 + 1
    mod = module(
        {"x": (rows, 8)},
        lambda emit, x: op.add(x, op.broadcast_to(constant(8, seed=1), (rows, 8))),
    )
    assert rewritten(mod, fold_constants)[1] == ["broadcast_to", "add"]


def test_an_index_outside_the_table_is_left_to_the_run() -> None:
    wrong = relax.const(np.array([0, 9], "int64"), "int64")
    mod = module({"x": (2, 6)}, lambda emit, x: op.add(x, op.take(A, wrong, axis=0)))
    assert rewritten(mod, fold_constants)[1] == ["take", "add"]


@pytest.mark.parametrize(("begin", "end"), [(-3, 9), (1, -1)])
def test_slices_counted_from_the_end_are_left_to_the_run(begin: int, end: int) -> None:
    source = constant(9, 6)
    part = op.strided_slice(source, axes=[0], begin=[begin], end=[end])
    rows = len(range(9)[begin:end])
    mod = module({"x": (rows, 6)}, lambda emit, x: op.add(x, part))
    assert rewritten(mod, fold_constants)[1] == ["strided_slice", "add"]


def test_a_filled_tensor_becomes_a_scalar() -> None:
    def body(emit, x, keep):
        return op.where(keep, op.full((64, 64), scalar(0.0), "float32"), x)

    mod = module({"x": (64, 64), "keep": ((64, 64), "bool")}, body)
    after, operators = rewritten(mod, scalar_fill)
    assert operators == ["where"]
    assert after["main"].body.blocks[0].bindings[0].value.args[1].ty.ndim == 0
    same_values(mod, after)


def test_a_fill_that_gives_the_result_its_shape_stays() -> None:
    def body(emit, x):
        return op.add(op.full((64, 64), scalar(1.0), "float32"), x)

    assert rewritten(module({"x": (64,)}, body), scalar_fill)[1] == ["full", "add"]


# -- scales and shifts into weights ----------------------------------------------------------------

NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC", "padding": 1}
POSITIVE = relax.const(np.linspace(0.5, 2.0, 16, dtype="float32"))


def conv(x: relax.Expr) -> relax.Expr:
    return op.nn.conv2d(x, constant(16, 3, 3, 8, seed=1), **NHWC)


def batch_norm(x: relax.Expr) -> relax.Expr:
    statistics = [constant(16, seed=seed) for seed in (2, 3, 4)]
    return op.nn.batch_norm(x, *statistics, POSITIVE, axis=-1, training=False)[0]


ROW, SHIFT = constant(16, seed=5), constant(16, seed=6)
AFFINE = {
    "conv scale": (lambda x: op.multiply(conv(x), ROW), ["nn.conv2d"]),
    "conv batch_norm": (lambda x: batch_norm(conv(x)), ["nn.conv2d", "add"]),
    "conv bias batch_norm": (
        lambda x: batch_norm(op.add(conv(x), SHIFT)),
        ["nn.conv2d", "add"],
    ),
    "conv bias scale shift": (
        lambda x: op.add(op.multiply(op.add(conv(x), SHIFT), ROW), SHIFT),
        ["nn.conv2d", "add"],
    ),
    "conv scale scale": (
        lambda x: op.multiply(op.multiply(conv(x), ROW), scalar(0.5)),
        ["nn.conv2d"],
    ),
    "matmul scale": (
        lambda x: op.multiply(op.matmul(x, constant(8, 16, seed=1)), ROW),
        ["matmul"],
    ),
    "two additions": (lambda x: op.add(op.add(conv(x), ROW), SHIFT), ["nn.conv2d", "add"]),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_chains_after_an_anchor(name: str) -> None:
    build, expected = AFFINE[name]
    mod = module({"x": (1, 6, 6, 8)}, lambda emit, x: build(x))
    after, operators = rewritten(mod, fold_constants, *FOLD_AFFINE)
    assert operators == expected
    same_values(mod, after, tolerance=2e-5)


NOT_FOLDED = {
    "a scale per row": (
        lambda x: op.multiply(op.matmul(x, constant(8, 16, seed=1)), constant(6, 1, seed=2)),
        ["matmul", "multiply"],
    ),
    "an infinite scale": (
        lambda x: op.multiply(conv(x), scalar(np.inf)),
        ["nn.conv2d", "multiply"],
    ),
    "a scale of the wrong axis": (
        lambda x: op.multiply(conv(x), constant(6, 1, 1, seed=2)),
        ["nn.conv2d", "multiply"],
    ),
    "a shift between": (
        lambda x: op.multiply(op.nn.relu(conv(x)), ROW),
        ["nn.conv2d", "nn.relu", "multiply"],
    ),
}


@pytest.mark.parametrize("name", NOT_FOLDED)
def test_what_does_not_commute_with_the_sum_stays(name: str) -> None:
    build, expected = NOT_FOLDED[name]
    mod = module({"x": (1, 6, 6, 8)}, lambda emit, x: build(x))
    assert rewritten(mod, *FOLD_AFFINE)[1] == expected


def test_a_product_with_two_readers_is_not_scaled() -> None:
    def body(emit, x):
        shared = emit(conv(x), "shared")
        return op.multiply(shared, ROW), op.tanh(shared)

    mod = module({"x": (1, 6, 6, 8)}, body)
    assert rewritten(mod, *FOLD_AFFINE)[1] == ["nn.conv2d", "multiply", "tanh"]


def test_weights_that_arrive_at_run_time_are_not_scaled() -> None:
    def body(emit, x, w):
        return op.multiply(op.matmul(x, w), ROW)

    mod = module({"x": (6, 8), "w": (8, 16)}, body)
    assert rewritten(mod, *FOLD_AFFINE)[1] == ["matmul", "multiply"]


def test_integers_are_not_merged() -> None:
    two = relax.const(np.array(2, "int32"), "int32")
    mod = module({"x": ((4,), "int32")}, lambda emit, x: op.multiply(op.multiply(x, two), two))
    assert rewritten(mod, *FOLD_AFFINE)[1] == ["multiply", "multiply"]


def test_prepared_and_compiled() -> None:
    """A convolution block of every kind of folding, through the whole compiler."""

    def body(emit, x):
        hidden = op.nn.relu(batch_norm(op.add(conv(x), SHIFT)))
        return op.multiply(hidden, op.full((1, 6, 6, 16), scalar(0.5), "float32"))

    mod = module({"x": (1, 6, 6, 8)}, body)
    prepared = prepare(mod, KEEP)
    kinds = [node.operator.removeprefix("relax.") for node in build_graph(prepared).nodes]
    assert kinds == ["nn.conv2d", "add", "nn.relu", "multiply"]
    check_numbers(mod, prepared, plan_of(mod, KEEP), KEEP)
