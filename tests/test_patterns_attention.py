"""Attention in the spellings of exporters: one kernel, or the reason why it is several."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fusion import check_fusion, constant, module, plan_of, random_inputs, scalar
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvmfuse.reasons import Code

op = relax.op
NAMES = "matmul multiply add nn.softmax permute_dims reshape"
MATMUL, MULTIPLY, ADD, SOFTMAX, PERMUTE, RESHAPE = (f"relax.{name}" for name in NAMES.split())
HEADS = (2, 4, 24, 16)
QKV = {"q": HEADS, "k": HEADS, "v": HEADS}
SCALE = 1 / math.sqrt(16)


def scores_of(q: relax.Expr, k: relax.Expr) -> relax.Expr:
    return op.multiply(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])), scalar(SCALE))


def test_scale_and_softmax_between_two_matmuls() -> None:
    def body(emit, q, k, v):
        return op.matmul(op.nn.softmax(scores_of(q, k), axis=-1), v)

    check_fusion(module(QKV, body), groups=[[PERMUTE, MATMUL, MULTIPLY, SOFTMAX, MATMUL]])


def test_the_outlined_function() -> None:
    @I.ir_module
    class Expected:
        @R.function(private=True)
        def fused_matmul_softmax_matmul(
            q: R.Tensor((2, 24, 16), "float32"),
            k: R.Tensor((2, 16, 24), "float32"),
            v: R.Tensor((2, 24, 16), "float32"),
        ) -> R.Tensor((2, 24, 16), "float32"):
            R.func_attr({"Primitive": True})
            with R.dataflow():
                lv: R.Tensor((2, 24, 24), "float32") = R.matmul(q, k)
                lv1: R.Tensor((2, 24, 24), "float32") = R.nn.softmax(lv, axis=-1)
                out: R.Tensor((2, 24, 16), "float32") = R.matmul(lv1, v)
                R.output(out)
            return out

        @R.function
        def main(
            q: R.Tensor((2, 24, 16), "float32"),
            k: R.Tensor((2, 16, 24), "float32"),
            v: R.Tensor((2, 24, 16), "float32"),
        ) -> R.Tensor((2, 24, 16), "float32"):
            cls = Expected
            with R.dataflow():
                out: R.Tensor((2, 24, 16), "float32") = cls.fused_matmul_softmax_matmul(q, k, v)
                R.output(out)
            return out

    mod = module(
        {"q": (2, 24, 16), "k": (2, 16, 24), "v": (2, 24, 16)},
        lambda emit, q, k, v: op.matmul(op.nn.softmax(op.matmul(q, k), axis=-1), v),
    )
    check_fusion(mod, groups=[[MATMUL, SOFTMAX, MATMUL]], expected=Expected, numerics=False)


@pytest.mark.parametrize("mask", [(24, 24), (2, 1, 1, 24), (*HEADS[:2], 24, 24)])
def test_an_additive_mask(mask: tuple) -> None:
    def body(emit, q, k, v, mask):
        return op.matmul(op.nn.softmax(op.add(scores_of(q, k), mask), axis=-1), v)

    mod = module(QKV | {"mask": mask}, body)
    check_fusion(mod, groups=[[PERMUTE, MATMUL, MULTIPLY, ADD, SOFTMAX, MATMUL]])


def test_the_guard_of_rows_that_are_masked_throughout() -> None:
    """PyTorch: ``where(all(scores == -inf), 0, softmax(scores))``."""

    def body(emit, q, k, v, mask):
        scores = emit(op.add(scores_of(q, k), mask), "scores")
        masked = emit(op.equal(scores, scalar(-np.inf)), "masked")
        count = op.min(op.astype(masked, "float32"), axis=-1, keepdims=True)
        dead = op.greater(count, scalar(0.5))
        guarded = op.where(dead, scalar(0.0), op.nn.softmax(scores, axis=-1))
        return op.matmul(guarded, v)

    mod = module(QKV | {"mask": (24, 24)}, body)
    inputs = random_inputs(mod)
    inputs[3][:, 20:] = -np.inf
    names = "permute_dims matmul multiply add equal astype min greater nn.softmax where matmul"
    check_fusion(mod, groups=[[f"relax.{name}" for name in names.split()]], inputs=inputs)


def test_queries_keys_and_values_packed_in_one_matmul() -> None:
    def body(emit, x):
        def heads(seed: int) -> relax.Expr:
            made = op.add(op.matmul(x, constant(32, 32, seed=seed)), constant(32, seed=seed + 9))
            return op.permute_dims(op.reshape(made, (2, 24, 4, 8)), [0, 2, 1, 3])

        q, k, v = heads(1), heads(2), heads(3)
        mixed = op.matmul(op.nn.softmax(scores_of(q, k), axis=-1), v)
        return op.reshape(op.permute_dims(mixed, [0, 2, 1, 3]), (2, 24, 32))

    head = ["relax.strided_slice", RESHAPE, PERMUTE]
    attention = [*head, *head, MATMUL, MULTIPLY, SOFTMAX, *head, MATMUL, PERMUTE, RESHAPE]
    wider = "lv1 is 2x24x32, the kernel makes 2x24x96"
    check_fusion(
        module({"x": (2, 24, 32)}, body),
        groups=[[MATMUL, ADD], attention],
        cut={
            ("combined_bias", "lv1"): (Code.SHAPE, wider),
            ("combined_bias", "lv5"): Code.SHAPE,
            ("combined_bias", "lv13"): Code.SHAPE,
        },
    )


def test_scores_scaled_before_the_product() -> None:
    def body(emit, q, k, v):
        scaled = op.multiply(q, scalar(SCALE))
        scores = op.matmul(scaled, op.permute_dims(k, [0, 1, 3, 2]))
        return op.matmul(op.nn.softmax(scores, axis=-1), v)

    check_fusion(module(QKV, body), groups=[[MULTIPLY, PERMUTE, MATMUL, SOFTMAX, MATMUL]])


# -- near misses -----------------------------------------------------------------------------------


def test_softmax_over_the_wrong_axis() -> None:
    def body(emit, q, k, v):
        scores = emit(scores_of(q, k), "scores")
        return op.matmul(emit(op.nn.softmax(scores, axis=2), "weights"), v)

    check_fusion(
        module(QKV, body),
        groups=[[PERMUTE, MATMUL, MULTIPLY], [SOFTMAX], [MATMUL]],
        cut={
            ("scores", "weights"): (
                Code.TWO_ANCHORS,
                "matmul and softmax are kernels of their own; no schedule rule has both",
            ),
            ("weights", "out"): Code.TWO_ANCHORS,
        },
        rejects={
            ("attention", "weights"): (Code.AXES, "weights is a softmax over axis 2, not the last")
        },
    )


def test_probabilities_that_are_an_output() -> None:
    def body(emit, q, k, v):
        weights = emit(op.nn.softmax(emit(scores_of(q, k), "scores"), axis=-1), "weights")
        return weights, op.matmul(weights, v)

    check_fusion(
        module(QKV, body),
        groups=[[PERMUTE, MATMUL, MULTIPLY], [SOFTMAX], [MATMUL]],
        cut={("scores", "out"): Code.TWO_ANCHORS, ("out", "out1"): Code.TWO_ANCHORS},
        rejects={("attention", "out"): (Code.MULTI_USE, "out is also read outside the attention")},
    )


def test_a_softmax_without_a_matmul_before_it() -> None:
    def body(emit, x, v):
        return op.matmul(emit(op.nn.softmax(x, axis=-1), "weights"), v)

    text = "weights has no matmul of its scores before it"
    check_fusion(
        module({"x": (2, 24, 24), "v": (2, 24, 16)}, body),
        groups=[[SOFTMAX], [MATMUL]],
        cut={("weights", "out"): Code.TWO_ANCHORS},
        rejects={("attention", "weights"): (Code.OPERATOR, text)},
    )


@pytest.mark.parametrize("computed", [True, False])
def test_probabilities_as_the_right_operand(computed: bool) -> None:
    def body(emit, q, k, v):
        left = emit(op.exp(v), "left") if computed else v
        weights = emit(op.nn.softmax(emit(op.matmul(q, k), "scores"), axis=-1), "weights")
        return op.matmul(left, weights)

    cut = {("scores", "weights"): Code.TWO_ANCHORS, ("weights", "out"): Code.TWO_ANCHORS}
    text = "weights is the right operand of the second matmul"
    check_fusion(
        module({"q": (2, 24, 16), "k": (2, 16, 24), "v": (2, 16, 24)}, body),
        groups=[["relax.exp"]] * computed + [[MATMUL], [SOFTMAX], [MATMUL]],
        cut=cut | ({("left", "out"): Code.RECOMPUTE_COSTS_MORE} if computed else {}),
        rejects={("attention", "weights"): (Code.OPERATOR, text)},
    )


def test_a_third_matmul_in_between() -> None:
    def body(emit, q, k, v, w):
        scores = emit(op.matmul(q, k), "scores")
        mixed = emit(op.matmul(scores, w), "mixed")
        weights = emit(op.nn.softmax(emit(op.add(scores, mixed), "sum"), axis=-1), "weights")
        return op.matmul(weights, v)

    shapes = {"q": (2, 24, 16), "k": (2, 16, 24), "v": (2, 24, 16), "w": (24, 24)}
    check_fusion(
        module(shapes, body),
        groups=[[MATMUL], [MATMUL, ADD], [SOFTMAX], [MATMUL]],
        cut={
            ("scores", "mixed"): Code.TWO_ANCHORS,
            ("scores", "sum"): Code.NOT_CONVEX,
            ("sum", "weights"): Code.TWO_ANCHORS,
            ("weights", "out"): Code.TWO_ANCHORS,
        },
        rejects={
            ("attention", "weights"): (Code.TWO_ANCHORS, "mixed is a third matmul in between")
        },
    )


def test_an_operator_in_between_that_no_kernel_has() -> None:
    def body(emit, q, k, v):
        scores = emit(op.matmul(q, k), "scores")
        weights = op.nn.softmax(scores, axis=-1)
        return op.matmul(op.cumsum(weights, axis=-1), v)

    plan = plan_of(module({"q": (2, 24, 16), "k": (2, 16, 24), "v": (2, 24, 16)}, body))
    assert sorted(match.pattern for match in plan.matches) == ["matmul", "matmul", "softmax"]
