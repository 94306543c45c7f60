"""Matmuls of one tensor packed into one: Q, K and V; gate and up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import tvm
import tvm_ffi
from fusion import assert_same, check_fusion, constant, module, scalar
from tvm import relax

from tvmfuse.graph import build_graph
from tvmfuse.options import Options
from tvmfuse.passes.combine_siblings import combine_siblings
from tvmfuse.reasons import Code

op = relax.op
NAMES = "matmul add strided_slice nn.silu multiply"
MATMUL, ADD, SLICE, SILU, MULTIPLY = (f"relax.{name}" for name in NAMES.split())
WIDTHS = (16, 8, 8)


def weights() -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.standard_normal((32, n)).astype("float32") for n in WIDTHS]


def biases() -> list[np.ndarray]:
    generator = np.random.default_rng(4)
    return [generator.standard_normal(n).astype("float32") for n in WIDTHS]


def matmuls(mod: tvm.IRModule) -> int:
    return sum(node.operator == MATMUL for node in build_graph(mod).nodes)


def untouched(mod: tvm.IRModule) -> None:
    assert tvm_ffi.structural_equal(combine_siblings(mod), mod, map_free_vars=True)


def test_three_projections_are_one_matmul_of_packed_weights() -> None:
    def before(emit, x):
        made = [
            emit(op.add(emit(op.matmul(x, relax.const(w))), relax.const(b)))
            for w, b in zip(weights(), biases(), strict=True)
        ]
        return [op.nn.silu(item) for item in made]

    def after(emit, x):
        product = emit(op.matmul(x, relax.const(np.concatenate(weights(), axis=1))))
        packed = emit(op.add(product, relax.const(np.concatenate(biases()))))
        ends = [0, *np.cumsum(WIDTHS)]
        made = [
            emit(op.strided_slice(packed, axes=[-1], begin=[int(a)], end=[int(b)]))
            for a, b in pairwise(ends)
        ]
        return [op.nn.silu(item) for item in made]

    shapes = {"x": (2, 24, 32)}
    assert_same(combine_siblings(module(shapes, before)), module(shapes, after))
    check_fusion(
        module(shapes, before),
        groups=[[MATMUL, ADD], *[[SLICE, SILU]] * 3],
        cut={
            ("combined_bias", "lv1"): (Code.SHAPE, "lv1 is 2x24x16, the kernel makes 2x24x32"),
            ("combined_bias", "lv3"): Code.SHAPE,
            ("combined_bias", "lv5"): Code.SHAPE,
        },
    )


def test_gate_and_up_of_a_gated_mlp() -> None:
    def body(emit, x):
        gate = op.nn.silu(op.matmul(x, constant(32, 24, seed=1)))
        return op.multiply(gate, op.matmul(x, constant(32, 24, seed=2)))

    plan = check_fusion(
        module({"x": (24, 32)}, body),
        groups=[[MATMUL], [SLICE, SILU, SLICE, MULTIPLY]],
        cut={("combined", "lv"): Code.SHAPE, ("combined", "lv2"): Code.SHAPE},
    )
    assert [int(extent) for extent in plan.graph.nodes[0].shape] == [24, 48]


def test_only_some_have_a_bias() -> None:
    def body(emit, x):
        with_bias = op.add(op.matmul(x, constant(32, 16, seed=1)), constant(16, seed=2))
        without = op.matmul(x, constant(32, 8, seed=3))
        return op.tanh(with_bias), op.tanh(without)

    mod = module({"x": (24, 32)}, body)
    assert matmuls(combine_siblings(mod)) == 1
    check_fusion(
        mod,
        groups=[[MATMUL, ADD], [SLICE, "relax.tanh"], [SLICE, "relax.tanh"]],
        cut={("combined_bias", "lv1"): Code.SHAPE, ("combined_bias", "lv2"): Code.SHAPE},
    )


def test_a_bias_that_is_a_scalar_stays_where_it_is() -> None:
    def body(emit, x):
        return [
            op.tanh(op.add(op.matmul(x, constant(32, 8, seed=seed)), scalar(0.5)))
            for seed in (1, 2)
        ]

    check_fusion(
        module({"x": (24, 32)}, body),
        groups=[[MATMUL], *[[SLICE, ADD, "relax.tanh"]] * 2],
        cut={("combined", "lv"): Code.SHAPE, ("combined", "lv2"): Code.SHAPE},
    )


def test_a_bias_of_higher_rank_keeps_the_shape_of_the_sum() -> None:
    def body(emit, x):
        return [
            op.tanh(op.add(op.matmul(x, constant(32, 8, seed=s)), constant(1, 1, 8, seed=s + 5)))
            for s in (1, 2)
        ]

    mod = module({"x": (24, 32)}, body)
    combined = combine_siblings(mod)
    assert tvm_ffi.structural_equal(combined["main"].ret_ty, mod["main"].ret_ty)
    relax.analysis.well_formed(combined)
    outputs = [node for node in build_graph(combined).nodes if node.is_output]
    assert [[int(extent) for extent in node.shape] for node in outputs] == [[1, 24, 8]] * 2


# -- near misses -----------------------------------------------------------------------------------


def test_weights_that_arrive_at_run_time() -> None:
    def body(emit, x, w, v):
        return op.nn.silu(op.matmul(x, w)), op.nn.silu(op.matmul(x, v))

    untouched(module({"x": (24, 32), "w": (32, 8), "v": (32, 8)}, body))


def test_matmuls_of_different_tensors() -> None:
    def body(emit, x, y):
        made = [op.matmul(item, constant(32, 8, seed=1)) for item in (x, y)]
        return [op.nn.silu(item) for item in made]

    untouched(module({"x": (24, 32), "y": (24, 32)}, body))


@pytest.mark.parametrize(
    ("left", "right"), [((32,), (32, 8)), ((2, 24, 32), (2, 32, 8)), ((24, 32), (32,))]
)
def test_vectors_and_batches_of_weights(left: tuple, right: tuple) -> None:
    """``relax.transform.CombineParallelMatmul`` crashes on the operands of one dimension."""

    def body(emit, x):
        return [op.tanh(op.matmul(x, constant(*right, seed=seed))) for seed in (1, 2)]

    untouched(module({"x": left}, body))


def test_accumulation_in_another_precision() -> None:
    def body(emit, x):
        half = [constant(32, 8, seed=seed, dtype="float16") for seed in (1, 2)]
        return op.tanh(op.matmul(x, half[0], out_dtype="float32")), op.tanh(op.matmul(x, half[1]))

    untouched(module({"x": ((24, 32), "float16")}, body))


def test_products_that_are_outputs() -> None:
    def body(emit, x):
        return [op.matmul(x, constant(32, 8, seed=seed)) for seed in (1, 2)]

    untouched(module({"x": (24, 32)}, body))


def test_the_option_turns_it_off() -> None:
    def body(emit, x):
        return [op.nn.silu(op.matmul(x, constant(32, 8, seed=seed))) for seed in (1, 2)]

    check_fusion(
        module({"x": (24, 32)}, body),
        groups=[[MATMUL, SILU]] * 2,
        options=Options(verify=False, combine_siblings=False),
    )
