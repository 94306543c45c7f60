"""The user's controls: never_fuse, must_fuse, fence, patterns turned off; and their errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fusion import OPTIONS, check_fusion, groups_of, module, plan_of, scalar
from tvm import relax

from tvmfuse.errors import FusionError
from tvmfuse.options import Options
from tvmfuse.reasons import Code

op = relax.op
MATMUL, ADD, RELU, SUM, MAX = (f"relax.{n}" for n in "matmul add nn.relu sum max".split())
APART = (Code.FENCED, "kept apart by the user's controls")
INPUTS = {"x": (8, 16), "w": (16, 32), "b": (32,)}


def options(**controls: object) -> Options:
    return replace(OPTIONS, **{name: frozenset(value) for name, value in controls.items()})


def layer(emit, x, w, b):
    product = emit(op.matmul(x, w), "product")
    biased = emit(op.add(product, b), "biased")
    return op.nn.relu(biased)


def test_without_controls_the_layer_is_one_kernel() -> None:
    check_fusion(module(INPUTS, layer), groups=[[MATMUL, ADD, RELU]])


@pytest.mark.parametrize("names", [("add", "nn.relu"), ("out", "biased"), ("biased", RELU)])
def test_never_fuse_by_operator_or_variable_in_either_order(names: tuple[str, str]) -> None:
    check_fusion(
        module(INPUTS, layer),
        groups=[[MATMUL, ADD], [RELU]],
        cut={("biased", "out"): APART},
        options=options(never_fuse=[names]),
    )


def test_never_fuse_of_two_that_are_not_neighbours() -> None:
    check_fusion(
        module(INPUTS, layer),
        groups=[[MATMUL, ADD], [RELU]],
        cut={("biased", "out"): APART},
        options=options(never_fuse=[("product", "out")]),
    )


def test_never_fuse_an_operator_with_its_own_kind() -> None:
    def body(emit, x):
        return op.exp(emit(op.exp(x), "once"))

    check_fusion(
        module({"x": (8, 16)}, body),
        groups=[["relax.exp"], ["relax.exp"]],
        cut={("once", "out"): APART},
        options=options(never_fuse=[("exp", "exp")]),
    )


def test_a_fence_stores_the_value_for_every_reader() -> None:
    def body(emit, x):
        middle = emit(op.tanh(x), "middle")
        return op.sin(middle), op.cos(middle)

    mod = module({"x": (8, 16)}, body)
    check_fusion(mod, groups=[["relax.tanh", "relax.sin", "relax.cos"]])
    check_fusion(
        mod,
        groups=[["relax.tanh"], ["relax.sin"], ["relax.cos"]],
        cut={("middle", "out"): APART, ("middle", "out1"): APART},
        options=options(fence=["middle"]),
    )


def test_reductions_of_one_tensor_are_kept_apart() -> None:
    mod = module({"x": (8, 16)}, lambda emit, x: (op.sum(x, axis=1), op.max(x, axis=1)))
    check_fusion(mod, groups=[[SUM], [MAX]], options=options(never_fuse=[("sum", "max")]))


def test_attention_is_taken_apart_where_the_user_says() -> None:
    def body(emit, q, k, v):
        scores = emit(op.matmul(q, k), "scores")
        return op.matmul(emit(op.nn.softmax(scores, axis=-1), "weights"), v)

    shapes = {"q": (2, 8, 16), "k": (2, 16, 8), "v": (2, 8, 16)}
    text = "the user's controls part the attention"
    check_fusion(
        module(shapes, body),
        groups=[[MATMUL], ["relax.nn.softmax"], [MATMUL]],
        cut={("scores", "weights"): Code.TWO_ANCHORS, ("weights", "out"): Code.TWO_ANCHORS},
        rejects={("attention", "weights"): (Code.FENCED, text)},
        options=options(never_fuse=[("matmul", "nn.softmax")]),
    )


def test_a_pattern_turned_off_leaves_its_anchor_alone() -> None:
    groups = groups_of(plan_of(module(INPUTS, layer), options(without=["matmul"])))
    assert groups == [[ADD, RELU]]


def test_without_elementwise_only_anchors_fuse() -> None:
    mod = module({"x": (8, 16)}, lambda emit, x: op.exp(op.sin(x)))
    assert groups_of(plan_of(mod, options(without=["elementwise"]))) == []


def test_must_fuse_that_holds_changes_nothing() -> None:
    controls = options(must_fuse=[("matmul", "add"), ("product", "out")])
    check_fusion(module(INPUTS, layer), groups=[[MATMUL, ADD, RELU]], options=controls)


def two_matmuls(emit, x, w, b):
    return op.matmul(emit(op.matmul(x, w), "first"), op.multiply(b, scalar(2.0)))


MESSAGES = {
    "impossible": (
        two_matmuls,
        {"must_fuse": [("first", "out")]},
        "first and out must be fused, but cannot: TWO_ANCHORS: matmul and matmul are kernels of "
        "their own; no schedule rule has both",
    ),
    "fenced": (
        layer,
        {"must_fuse": [("biased", "out")], "fence": ["biased"]},
        "biased and out must be fused, but cannot: FENCED: kept apart by the user's controls",
    ),
    "contradiction": (
        layer,
        {"must_fuse": [("add", "nn.relu")], "never_fuse": [("nn.relu", "add")]},
        "add and nn.relu both must and must not be fused",
    ),
    "unknown name": (
        layer,
        {"never_fuse": [("add", "nosuch")]},
        "no variable or operator of the model is called 'nosuch'",
    ),
    "unknown fence": (
        layer,
        {"fence": ["add"]},
        "no variable of the model is called 'add'",
    ),
    "not neighbours": (
        two_matmuls,
        {"must_fuse": [("matmul", "b2")]},
        "no variable or operator of the model is called 'b2'",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_errors_say_what_is_wrong(case: str) -> None:
    body, controls, text = MESSAGES[case]
    inputs = {**INPUTS, "b": (32, 4)} if body is two_matmuls else INPUTS
    with pytest.raises(FusionError) as error:
        plan_of(module(inputs, body), options(**controls))
    assert str(error.value) == text


def test_an_unknown_pattern_is_named_with_those_there_are() -> None:
    with pytest.raises(FusionError, match="there is no pattern 'matmull' to turn off; the pat"):
        plan_of(module(INPUTS, layer), options(without=["matmull"]))
