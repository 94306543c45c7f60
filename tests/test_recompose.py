"""Recomposition: every spelling is recognised, near misses are not, and the numbers stay."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from scipy.special import erf as erf64
from tvm import relax, te, topi

from tvmfuse.graph import build_graph
from tvmfuse.options import Options
from tvmfuse.passes.prepare import prepare
from tvmfuse.passes.recompose import RECOMPOSE, recompose
from tvmfuse.passes.rewriter import constant, make_constant

RANDOM = np.random.default_rng(11)
# Code of one run is not worth optimising.
TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})
SHAPE = (2, 5, 8)
op = relax.op
Build = Callable[..., relax.Expr]


def number(value: float, dtype: str = "float32") -> relax.Expr:
    return make_constant(np.asarray(value, dtype))


def module(build: Build, *shapes: tuple, dtype: str = "float32") -> tvm.IRModule:
    """``main`` of one dataflow block: a binding per operator of ``build``, several results kept."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            made = build(builder, *params)
            made = made if isinstance(made, list) else [made]
            results = [builder.emit_output(item) for item in made]
        builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return relax.transform.CanonicalizeBindings()(builder.get())


def unary(build: Callable[[relax.Expr], relax.Expr], dtype: str = "float32") -> tvm.IRModule:
    """The module of a formula of one input, which is itself no parameter but a computed value."""
    return module(lambda builder, x: build(builder.emit(op.negative(x))), SHAPE, dtype=dtype)


def operators(mod: tvm.IRModule) -> list[str]:
    mod = relax.transform.CanonicalizeBindings()(mod)
    return [node.operator.removeprefix("relax.") for node in build_graph(mod).nodes]


def run(mod: tvm.IRModule, *inputs: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(mod, TARGET), tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(array) for array in inputs]).numpy()


def close_to(found: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    # A few roundings of values of size about 1 to 10.
    tolerance = {"float32": 3e-6, "float16": 6e-3}[dtype]
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype("float64"), expected, rtol=tolerance, atol=tolerance)


# -- activations -----------------------------------------------------------------------------------

CUBIC, SLOPE = 0.044715, math.sqrt(2 / math.pi)
half, one = number(0.5), number(1.0)
add, sub, mul, div = op.add, op.subtract, op.multiply, op.divide


def cubic(x):
    return mul(number(SLOPE), add(x, mul(number(CUBIC), op.power(x, number(3.0)))))


def cubic_of_products(x):
    cube = mul(mul(x, x), x)
    return add(mul(cube, number(CUBIC * SLOPE)), mul(x, number(SLOPE)))


def cubic_factored(x):
    return mul(mul(x, number(0.7978845608)), add(mul(number(CUBIC), mul(x, x)), one))


def gelu64(x):
    return 0.5 * x * (1 + erf64(x / math.sqrt(2)))


def gelu_tanh64(x):
    return 0.5 * x * (1 + np.tanh(SLOPE * (x + CUBIC * x**3)))


def silu64(x):
    return x / (1 + np.exp(-x))


def hard_sigmoid64(x):
    return np.clip(x / 6 + 0.5, 0, 1)


SIXTH = [mul, add, op.clip]
ACTIVATIONS = {
    # GELU, exact: three exporters' spellings, and other orders of the same
    "gelu divide": (
        lambda x: mul(mul(half, x), add(one, op.erf(div(x, number(math.sqrt(2)))))),
        ["nn.gelu"],
        gelu64,
    ),
    "gelu multiply": (
        lambda x: mul(x, add(half, mul(half, op.erf(mul(x, number(0.70710678)))))),
        ["nn.gelu"],
        gelu64,
    ),
    "gelu halved last": (
        lambda x: mul(mul(x, add(op.erf(div(x, number(1.41421356))), one)), half),
        ["nn.gelu"],
        gelu64,
    ),
    "gelu distributed": (
        lambda x: div(add(x, mul(op.erf(mul(number(math.sqrt(0.5)), x)), x)), number(2.0)),
        ["nn.gelu"],
        gelu64,
    ),
    "gelu constants of rank 1": (
        lambda x: mul(
            mul(x, add(op.erf(div(x, make_constant(np.array([2**0.5], "f")))), one)),
            make_constant(np.array([0.5], "f")),
        ),
        ["nn.gelu"],
        gelu64,
    ),
    # GELU, tanh
    "gelu tanh power": (
        lambda x: mul(mul(half, x), add(one, op.tanh(cubic(x)))),
        ["nn.gelu_tanh"],
        gelu_tanh64,
    ),
    "gelu tanh products": (
        lambda x: mul(mul(half, x), add(op.tanh(cubic_of_products(x)), one)),
        ["nn.gelu_tanh"],
        gelu_tanh64,
    ),
    "gelu tanh factored": (
        lambda x: mul(mul(x, add(one, op.tanh(cubic_factored(x)))), half),
        ["nn.gelu_tanh"],
        gelu_tanh64,
    ),
    "gelu sigmoid of cubic": (
        lambda x: mul(x, op.sigmoid(mul(number(2.0), cubic(x)))),
        ["nn.gelu_tanh"],
        gelu_tanh64,
    ),
    # SiLU
    "silu": (lambda x: mul(x, op.sigmoid(x)), ["nn.silu"], silu64),
    "silu swapped": (lambda x: mul(op.sigmoid(x), x), ["nn.silu"], silu64),
    "silu quotient": (
        lambda x: div(x, add(one, op.exp(op.negative(x)))),
        ["nn.silu"],
        silu64,
    ),
    "silu reciprocal": (
        lambda x: mul(x, div(one, add(op.exp(mul(x, number(-1.0))), one))),
        ["nn.silu"],
        silu64,
    ),
    "sigmoid": (
        lambda x: div(one, add(one, op.exp(sub(number(0.0), x)))),
        ["sigmoid"],
        lambda x: 1 / (1 + np.exp(-x)),
    ),
    # hard-swish and hard-sigmoid
    "hard sigmoid": (
        lambda x: div(op.clip(add(x, number(3.0)), 0, 6), number(6.0)),
        ["multiply", "add", "clip"],
        hard_sigmoid64,
    ),
    "hard swish gate divided": (
        lambda x: mul(x, div(op.clip(add(number(3.0), x), 0, 6), number(6.0))),
        ["multiply", "add", "clip", "multiply"],
        lambda x: x * hard_sigmoid64(x),
    ),
    "hard swish divided last": (
        lambda x: div(
            mul(x, op.minimum(op.maximum(add(x, number(3.0)), number(0.0)), number(6.0))),
            number(6.0),
        ),
        ["multiply", "add", "clip", "multiply"],
        lambda x: x * hard_sigmoid64(x),
    ),
    "hard swish normal form": (
        lambda x: mul(x, op.clip(add(mul(x, number(1 / 6)), half), 0.0, 1.0)),
        ["multiply", "add", "clip", "multiply"],
        lambda x: x * hard_sigmoid64(x),
    ),
    # softplus and what is made of it
    "softplus": (
        lambda x: op.log(add(one, op.exp(x))),
        ["nn.softplus"],
        lambda x: np.log1p(np.exp(x)),
    ),
    "softplus of ONNX": (
        lambda x: add(op.nn.relu(x), op.log(add(op.exp(op.negative(op.abs(x))), one))),
        ["nn.softplus"],
        lambda x: np.log1p(np.exp(x)),
    ),
    "mish of ONNX": (
        lambda x: mul(x, op.tanh(op.log(add(one, op.exp(x))))),
        ["nn.softplus", "tanh", "multiply"],
        lambda x: x * np.tanh(np.log1p(np.exp(x))),
    ),
    # neutral constants
    "neutral": (
        lambda x: sub(div(add(mul(one, x), make_constant(np.zeros(8, "f"))), one), number(0.0)),
        [],
        lambda x: x,
    ),
    # clip
    "relu": (lambda x: op.maximum(number(0.0), x), ["nn.relu"], lambda x: np.maximum(x, 0)),
    "relu6": (lambda x: op.nn.relu6(x), ["clip"], lambda x: np.clip(x, 0, 6)),
    "relu and bound": (
        lambda x: op.minimum(op.nn.relu(x), number(6.0)),
        ["clip"],
        lambda x: np.clip(x, 0, 6),
    ),
    "clip of either order": (
        lambda x: op.maximum(number(-0.25), op.minimum(x, number(0.5))),
        ["clip"],
        lambda x: np.clip(x, -0.25, 0.5),
    ),
    "unbounded": (
        lambda x: op.minimum(op.maximum(x, number(-math.inf)), number(math.inf)),
        [],
        lambda x: x,
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    build, expected, reference = ACTIVATIONS[name]
    before = unary(build)
    text = before.script()
    after = recompose(before)
    assert before.script() == text
    assert operators(after)[1:] == expected
    relax.analysis.well_formed(after)
    x = (RANDOM.standard_normal(SHAPE) * 3).astype("float32")
    close_to(run(after, x), reference(-x.astype("float64")), "float32")
    assert tvm_ffi.structural_equal(recompose(after), after)


@pytest.mark.parametrize("name", ["gelu divide", "gelu tanh power", "silu"])
def test_activation_in_float16_computed_in_float32(name):
    """``astype(f(astype(x, f32)), f16)``: the casts stay around the operator, where they were."""
    build, expected, reference = ACTIVATIONS[name]
    before = unary(lambda x: op.astype(build(op.astype(x, "float32")), "float16"), "float16")
    after = recompose(prepare_cse(before))
    assert operators(after) == ["negative", "astype", *expected, "astype"]
    x = RANDOM.standard_normal(SHAPE).astype("float16")
    close_to(run(after, x), reference(-x.astype("float64")), "float16")


def test_gelu_with_a_cast_inside():
    def build(x):
        inner = op.erf(op.astype(div(x, number(2**0.5, "float16")), "float32"))
        gate = add(op.astype(inner, "float16"), number(1.0, "float16"))
        return mul(mul(x, gate), number(0.5, "float16"))

    after = recompose(unary(build, "float16"))
    assert operators(after) == ["negative", "nn.gelu"]
    x = RANDOM.standard_normal(SHAPE).astype("float16")
    close_to(run(after, x), gelu64(-x.astype("float64")), "float16")


def prepare_cse(mod: tvm.IRModule) -> tvm.IRModule:
    passes = [relax.transform.EliminateCommonSubexpr(), relax.transform.CanonicalizeBindings()]
    return tvm.ir.transform.Sequential(passes)(mod)


NEAR_MISSES = {
    "gelu of another slope": lambda x: mul(mul(half, x), add(one, op.erf(mul(x, number(0.7))))),
    "gelu of another factor": lambda x: mul(
        mul(number(0.4), x), add(one, op.erf(div(x, number(2**0.5))))
    ),
    "gelu without the one": lambda x: mul(mul(half, x), op.erf(div(x, number(2**0.5)))),
    "gelu of a negated gate": lambda x: mul(mul(half, x), sub(one, op.erf(div(x, number(2**0.5))))),
    "quick gelu": lambda x: mul(x, op.sigmoid(mul(x, number(1.702)))),
    "gelu tanh of a square": lambda x: mul(
        mul(half, x),
        add(one, op.tanh(mul(number(SLOPE), add(x, mul(number(CUBIC), mul(x, x)))))),
    ),
    "gelu tanh of another cubic": lambda x: mul(
        mul(half, x),
        add(one, op.tanh(mul(number(SLOPE), add(x, mul(number(0.05), mul(mul(x, x), x)))))),
    ),
    "silu of another input": lambda x: mul(op.exp(x), op.sigmoid(x)),
    "silu minus": lambda x: mul(x, op.sigmoid(op.negative(x))),
    "hard swish of another scale": lambda x: div(
        mul(x, op.clip(add(x, number(3.0)), 0, 6)), number(5.0)
    ),
    "hard sigmoid from below zero": lambda x: div(op.clip(add(x, number(3.0)), -1, 6), number(6.0)),
    "crossed clip": lambda x: op.minimum(op.maximum(x, number(2.0)), number(1.0)),
    "clip by a nan": lambda x: op.minimum(op.maximum(x, number(math.nan)), number(1.0)),
    "clip by a vector": lambda x: op.minimum(
        op.maximum(x, make_constant(np.zeros(8, "f"))), number(1.0)
    ),
    "softmax over another axis": lambda x: div(op.exp(x), op.sum(op.exp(x), [1, 2], True)),
    "softplus of two": lambda x: op.log(add(number(2.0), op.exp(x))),
    "softplus of another tail": lambda x: add(op.nn.relu(x), op.nn.softplus(op.abs(x))),
    "softplus of another input": lambda x: add(
        op.nn.relu(op.exp(x)), op.nn.softplus(op.negative(op.abs(x)))
    ),
    "one that broadcasts": lambda x: mul(x, make_constant(np.ones((3, 1, 1, 1), "f"))),
    "log of a sum": lambda x: sub(x, op.log(op.sum(x, [2], True))),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_miss_stays(name):
    before = prepare_cse(unary(NEAR_MISSES[name]))
    assert operators(recompose(before)) == operators(before)


ALIVE = {
    "silu": lambda b, x: (g := b.emit(op.sigmoid(x)), mul(x, g)),
    "gelu": lambda b, x: (
        g := b.emit(op.erf(div(x, number(2**0.5)))),
        mul(mul(half, x), add(one, g)),
    ),
    "softmax": lambda b, x: (
        e := b.emit(op.exp(sub(x, op.max(x, [2], True)))),
        div(e, op.sum(e, [2], True)),
    ),
    "layer norm": lambda b, x: (
        v := b.emit(op.variance(x, [2], True)),
        div(sub(x, op.mean(x, [2], True)), op.sqrt(add(v, number(1e-5)))),
    ),
    "rms norm": lambda b, x: (
        r := b.emit(op.rsqrt(add(op.mean(mul(x, x), [2], True), number(1e-5)))),
        mul(x, r),
    ),
    "clip": lambda b, x: (m := b.emit(op.maximum(x, half)), op.minimum(m, one)),
}


@pytest.mark.parametrize("name", ALIVE)
def test_intermediate_that_others_read_stays(name):
    """Recomposing would compute the shared part a second time."""
    before = module(lambda builder, x: list(ALIVE[name](builder, x)), SHAPE)
    assert operators(recompose(before)) == operators(before)


# -- rows -----------------------------------------------------------------------------------------

EPSILON = 1e-3
GAMMA = RANDOM.standard_normal(8).astype("float32")
BETA = RANDOM.standard_normal(8).astype("float32")
eps = number(EPSILON)


def centre(x):
    return sub(x, op.mean(x, [-1], True))


def affine(y):
    return add(mul(y, make_constant(GAMMA)), make_constant(BETA))


def affine_swapped(y):
    return add(make_constant(BETA), mul(make_constant(GAMMA.reshape(1, 1, 8)), y))


def mean_square(d):
    return op.mean(mul(d, d), [-1], True)


def layer64(x):
    deviation = np.sqrt(x.var(-1, keepdims=True) + EPSILON)
    return (x - x.mean(-1, keepdims=True)) / deviation


def affine64(y):
    return y * GAMMA.astype("float64") + BETA.astype("float64")


def rms64(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)


def softmax64(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def shifted_exp(x, axis):
    return op.exp(sub(x, op.max(x, [axis], True)))


ROWS = {
    "layer norm of ONNX": (
        lambda x: affine(
            div(centre(x), op.sqrt(add(op.mean(op.power(centre(x), number(2.0)), [-1], True), eps)))
        ),
        ["nn.layer_norm"],
        lambda x: affine64(layer64(x)),
    ),
    "layer norm by rsqrt": (
        lambda x: affine_swapped(mul(op.rsqrt(add(eps, mean_square(centre(x)))), centre(x))),
        ["nn.layer_norm"],
        lambda x: affine64(layer64(x)),
    ),
    "layer norm by reciprocal": (
        lambda x: mul(centre(x), div(one, op.sqrt(add(mean_square(centre(x)), eps)))),
        ["nn.layer_norm"],
        layer64,
    ),
    "layer norm by power": (
        lambda x: (
            mul(centre(x), op.power(add(op.square(centre(x)), eps), number(-0.5)))
            if False
            else mul(centre(x), op.power(add(mean_square(centre(x)), eps), number(-0.5)))
        ),
        ["nn.layer_norm"],
        layer64,
    ),
    "layer norm of variance": (
        lambda x: affine(div(centre(x), op.sqrt(add(op.variance(x, [-1], True), eps)))),
        ["nn.layer_norm"],
        lambda x: affine64(layer64(x)),
    ),
    "layer norm of two means": (
        lambda x: div(
            centre(x),
            op.sqrt(add(sub(mean_square(x), op.square(op.mean(x, [-1], True))), eps)),
        ),
        ["nn.layer_norm"],
        layer64,
    ),
    "layer norm of sums": (
        lambda x: div(
            sub(x, mul(op.sum(x, [2], True), number(1 / 8))),
            op.sqrt(
                add(
                    div(
                        op.sum(
                            op.square(sub(x, mul(op.sum(x, [2], True), number(1 / 8)))), [2], True
                        ),
                        number(8.0),
                    ),
                    eps,
                )
            ),
        ),
        ["nn.layer_norm"],
        layer64,
    ),
    "layer norm with scale only": (
        lambda x: mul(
            make_constant(GAMMA), div(centre(x), op.sqrt(add(mean_square(centre(x)), eps)))
        ),
        ["nn.layer_norm"],
        lambda x: layer64(x) * GAMMA,
    ),
    "rms norm": (
        lambda x: mul(make_constant(GAMMA), mul(x, op.rsqrt(add(mean_square(x), eps)))),
        ["nn.rms_norm"],
        lambda x: rms64(x) * GAMMA,
    ),
    "rms norm by division": (
        lambda x: mul(
            div(x, op.sqrt(add(op.mean(op.power(x, number(2.0)), [2], True), eps))),
            make_constant(GAMMA),
        ),
        ["nn.rms_norm"],
        lambda x: rms64(x) * GAMMA,
    ),
    "softmax": (
        lambda x: div(shifted_exp(x, 1), op.sum(shifted_exp(x, 1), [1], True)),
        ["nn.softmax"],
        lambda x: softmax64(x, 1),
    ),
    "softmax by reciprocal": (
        lambda x: mul(div(one, op.sum(shifted_exp(x, -1), [-1], True)), shifted_exp(x, -1)),
        ["nn.softmax"],
        lambda x: softmax64(x, 2),
    ),
    "softmax without maximum": (
        lambda x: div(op.exp(x), op.sum(op.exp(x), [-1], True)),
        ["nn.softmax"],
        lambda x: softmax64(x, 2),
    ),
    "log softmax": (
        lambda x: sub(sub(x, op.max(x, [2], True)), op.log(op.sum(shifted_exp(x, 2), [2], True))),
        ["nn.log_softmax"],
        lambda x: np.log(softmax64(x, 2)),
    ),
    "log of softmax": (
        lambda x: op.log(op.nn.softmax(x, 1)),
        ["nn.log_softmax"],
        lambda x: np.log(softmax64(x, 1)),
    ),
}


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "repeated"])
@pytest.mark.parametrize("name", ROWS)
def test_row_operator(name, shared):
    """With the common subexpressions bound once, and written out each time."""
    build, expected, reference = ROWS[name]
    before = unary(build)
    after = recompose(prepare_cse(before) if shared else before)
    assert operators(after) == ["negative", *expected]
    relax.analysis.well_formed(after)
    if shared:
        x = RANDOM.standard_normal(SHAPE).astype("float32")
        # Reductions of 8 terms.
        np.testing.assert_allclose(
            run(after, x), reference(-x.astype("float64")), rtol=2e-5, atol=2e-5
        )


def test_layer_norm_whose_centred_value_others_read_is_an_rms_norm_of_it():
    def build(builder, x):
        d = builder.emit(centre(x))
        return [d, div(d, op.sqrt(add(mean_square(d), eps)))]

    after = recompose(module(build, SHAPE))
    assert operators(after) == ["mean", "subtract", "nn.rms_norm"]


ROW_MISSES = {
    "another epsilon side": lambda x: div(centre(x), add(op.sqrt(mean_square(centre(x))), eps)),
    "variance of other axes": lambda x: div(
        centre(x), op.sqrt(add(op.mean(op.square(centre(x)), [1], True), eps))
    ),
    "mean of other axes": lambda x: div(
        sub(x, op.mean(x, [1], True)), op.sqrt(add(mean_square(centre(x)), eps))
    ),
    "sum instead of mean": lambda x: mul(x, op.rsqrt(add(op.sum(mul(x, x), [2], True), eps))),
    "unbiased variance": lambda x: div(
        centre(x), op.sqrt(add(mul(op.variance(x, [2], True), number(8 / 7)), eps))
    ),
    "rms of another tensor": lambda x: mul(op.exp(x), op.rsqrt(add(mean_square(x), eps))),
    "no root": lambda x: div(x, add(mean_square(x), eps)),
    "softmax of another numerator": lambda x: div(op.exp(x), op.sum(shifted_exp(x, 2), [2], True)),
}


@pytest.mark.parametrize("name", ROW_MISSES)
def test_row_near_miss_stays(name):
    before = prepare_cse(unary(ROW_MISSES[name]))
    assert operators(recompose(before)) == operators(before)


def test_scale_along_another_axis_is_not_absorbed():
    scale = make_constant(RANDOM.standard_normal((5, 1)).astype("float32"))
    before = unary(lambda x: mul(div(centre(x), op.sqrt(add(mean_square(centre(x)), eps))), scale))
    assert operators(recompose(before)) == ["negative", "nn.layer_norm", "multiply"]


def test_rms_norm_of_llama_in_float16():
    """The norm in float32 between casts, the weight in float16."""
    weight = make_constant(GAMMA.astype("float16"))

    def build(x):
        h = op.astype(x, "float32")
        y = mul(h, op.rsqrt(add(op.mean(op.power(h, number(2.0)), [-1], True), eps)))
        return mul(weight, op.astype(y, "float16"))

    after = recompose(prepare_cse(unary(build, "float16")))
    assert operators(after) == ["negative", "nn.rms_norm"]
    x = RANDOM.standard_normal(SHAPE).astype("float16")
    close_to(run(after, x), rms64(-x.astype("float64")) * GAMMA.astype("float16"), "float16")


def test_layer_norm_whose_scale_is_an_input():
    def build(builder, x, gamma):
        y = div(centre(x), op.sqrt(add(mean_square(centre(x)), eps)))
        return mul(builder.emit(y), gamma)

    after = recompose(prepare_cse(module(build, SHAPE, (8,))))
    assert operators(after) == ["nn.layer_norm"]
    x = RANDOM.standard_normal(SHAPE).astype("float32")
    expected = layer64(x.astype("float64")) * GAMMA
    np.testing.assert_allclose(run(after, x, GAMMA), expected, rtol=2e-5, atol=2e-5)


def test_instance_norm_of_the_onnx_importer():
    scale, shift = (RANDOM.standard_normal((1, 3, 1, 1)).astype("float32") for _ in range(2))

    def build(builder, x):
        mean, variance = op.mean(x, [2, 3], True), op.variance(x, [2, 3], True)
        y = div(sub(x, mean), op.sqrt(add(variance, eps)))
        return add(mul(y, make_constant(scale)), make_constant(shift))

    after = recompose(prepare_cse(module(build, (2, 3, 4, 6))))
    assert operators(after) == ["nn.instance_norm"]
    x = RANDOM.standard_normal((2, 3, 4, 6)).astype("float32")
    wide = x.astype("float64")
    deviation = np.sqrt(wide.var((2, 3), keepdims=True) + EPSILON)
    expected = (wide - wide.mean((2, 3), keepdims=True)) / deviation * scale + shift
    np.testing.assert_allclose(run(after, x), expected, rtol=2e-5, atol=2e-5)


def group_norm(channels: int, grouped: tuple, shape: tuple = (2, 6, 4, 5)) -> tvm.IRModule:
    """Group norm of ``shape`` as an ONNX exporter writes it, normalising rows of ``grouped``."""
    vector = np.linspace(0.5, 1.5, channels, dtype="float32").reshape(-1, 1, 1)
    axes = list(range(2, len(grouped)))
    unit = np.ones((grouped[1],) + (1,) * len(axes), "f")

    def build(builder, x):
        g = builder.emit(op.reshape(x, grouped))
        mean, variance = op.mean(g, axes, True), op.variance(g, axes, True)
        n = div(sub(g, mean), op.sqrt(add(variance, eps)))
        n = add(mul(n, make_constant(unit)), make_constant(0 * unit))
        y = op.reshape(builder.emit(n), shape)
        return add(mul(y, make_constant(vector)), make_constant(-vector))

    return prepare_cse(module(build, shape))


@pytest.mark.parametrize("grouped", [(2, 3, 40), (2, 3, 2, 4, 5)], ids=["rows", "split"])
def test_group_norm(grouped):
    after = recompose(group_norm(6, grouped))
    assert operators(after) == ["nn.group_norm"]
    x = RANDOM.standard_normal((2, 6, 4, 5)).astype("float32")
    rows = x.astype("float64").reshape(2, 3, -1)
    rows = rows - rows.mean(2, keepdims=True)
    rows = rows / np.sqrt((rows**2).mean(2, keepdims=True) + EPSILON)
    scale = np.linspace(0.5, 1.5, 6).reshape(-1, 1, 1)
    expected = rows.reshape(x.shape) * scale - scale
    np.testing.assert_allclose(run(after, x), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("grouped", [(2, 4, 30), (1, 6, 40)], ids=["split channels", "batch"])
def test_rows_that_are_no_groups_of_channels_stay_a_layer_norm(grouped):
    after = recompose(group_norm(6, grouped))
    assert operators(after) == ["reshape", "nn.layer_norm", "reshape", "multiply", "add"]


# -- functions of the importer, and the pipeline --------------------------------------------------


def clipped_by_calls(low: relax.Expr | float, high: relax.Expr | float) -> tvm.IRModule:
    def build(builder, x):
        y = builder.emit_te(topi.maximum, x, low)
        return builder.emit_te(topi.minimum, y, high)

    return module(build, SHAPE)


@pytest.mark.parametrize("operands", [(number(0.0), number(6.0)), (0.0, 6.0)])
def test_clip_of_the_onnx_importer(operands):
    """Bounds as tensors (opset 13) and as immediates (opset 6)."""
    after = recompose(clipped_by_calls(*operands))
    assert operators(after) == ["clip"]
    x = (RANDOM.standard_normal(SHAPE) * 6).astype("float32")
    np.testing.assert_array_equal(run(after, x), np.clip(x, 0, 6))


def test_call_of_something_else_stays():
    def shifted_read(x: te.Tensor) -> te.Tensor:  # a maximum, but with the neighbour's element
        shape = tuple(x.shape)
        return te.compute(
            shape, lambda i, j, k: te.max_value("float32") * 0 + tvm.tirx.max(x[i, j, 7 - k], 0.0)
        )

    before = module(lambda builder, x: builder.emit_te(shifted_read, x), SHAPE)
    assert operators(recompose(before)) == operators(before)


def test_prepare_folds_the_importer_bounds_first():
    def build(builder, x):
        zero = number(0.0)
        low = builder.emit(op.where(op.isnan(zero), number(-math.inf), zero))
        y = builder.emit_te(topi.maximum, x, low)
        return builder.emit_te(topi.minimum, y, number(6.0))

    assert operators(prepare(module(build, SHAPE), Options())) == ["clip"]


def test_hard_sigmoid_folds_into_the_convolution_before_it():
    weight = RANDOM.standard_normal((4, 3, 1, 1)).astype("float32")
    bias = RANDOM.standard_normal((1, 4, 1, 1)).astype("float32")

    def build(builder, x):
        y = add(op.nn.conv2d(x, make_constant(weight)), make_constant(bias))
        return div(op.clip(add(y, number(3.0)), 0, 6), number(6.0))

    after = prepare(module(build, (1, 3, 1, 1)), Options(layout=False))
    assert operators(after) == ["nn.conv2d", "add", "clip"]
    folded = constant(build_graph(after).nodes[0].value.args[1])
    np.testing.assert_allclose(folded, weight / 6, rtol=1e-6)


def test_every_recogniser_is_in_the_tuple_once():
    assert len(set(RECOMPOSE)) == len(RECOMPOSE)


def test_bfloat16():
    """Constants in bfloat16 have three digits: 0.7070 stands for the root of one half."""

    def rounded(value):
        return number(value, "bfloat16")

    def build(x):
        gate = add(rounded(1.0), op.erf(mul(x, rounded(0.707))))
        return mul(mul(rounded(0.5), x), gate)

    assert operators(recompose(unary(build, "bfloat16"))) == ["negative", "nn.gelu"]

    def hard(x):
        return div(mul(x, op.clip(add(x, rounded(3.0)), 0, 6)), rounded(6.0))

    expected = ["negative", "multiply", "add", "clip", "multiply"]
    assert operators(recompose(unary(hard, "bfloat16"))) == expected
