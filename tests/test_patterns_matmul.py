"""Matrix multiplication: what its kernel takes, what it leaves, and the numbers."""

from __future__ import annotations

import pytest
import tvm
from fusion import check_fusion, module, outlined_module, scalar
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvmfuse.options import Options
from tvmfuse.reasons import Code

op = relax.op
MATMUL, ADD = "relax.matmul", "relax.add"

ACTIVATIONS = {
    "relax.nn.relu": op.nn.relu,
    "relax.nn.gelu": op.nn.gelu,
    "relax.nn.gelu_tanh": op.nn.gelu_tanh,
    "relax.nn.silu": op.nn.silu,
    "relax.sigmoid": op.sigmoid,
    "relax.tanh": op.tanh,
    "relax.clip": lambda x: op.clip(x, 0.0, 6.0),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bias_activation_and_residual_are_one_kernel(activation: str) -> None:
    def body(emit, x, w, b, r):
        return op.add(ACTIVATIONS[activation](op.add(op.matmul(x, w), b)), r)

    mod = module({"x": (24, 40), "w": (40, 32), "b": (32,), "r": (24, 32)}, body)
    check_fusion(mod, groups=[[MATMUL, ADD, activation, ADD]])


def test_the_outlined_function() -> None:
    @I.ir_module
    class Expected:
        @R.function(private=True)
        def fused_matmul_add_relu(
            x: R.Tensor((24, 40), "float32"),
            w: R.Tensor((40, 32), "float32"),
            b: R.Tensor((32,), "float32"),
        ) -> R.Tensor((24, 32), "float32"):
            R.func_attr({"Primitive": True})
            with R.dataflow():
                lv: R.Tensor((24, 32), "float32") = R.matmul(x, w)
                lv1: R.Tensor((24, 32), "float32") = R.add(lv, b)
                out: R.Tensor((24, 32), "float32") = R.nn.relu(lv1)
                R.output(out)
            return out

        @R.function
        def main(
            x: R.Tensor((24, 40), "float32"),
            w: R.Tensor((40, 32), "float32"),
            b: R.Tensor((32,), "float32"),
        ) -> R.Tensor((24, 32), "float32"):
            cls = Expected
            with R.dataflow():
                out: R.Tensor((24, 32), "float32") = cls.fused_matmul_add_relu(x, w, b)
                R.output(out)
            return out

    mod = module(
        {"x": (24, 40), "w": (40, 32), "b": (32,)},
        lambda emit, x, w, b: op.nn.relu(op.add(op.matmul(x, w), b)),
    )
    check_fusion(mod, groups=[[MATMUL, ADD, "relax.nn.relu"]], expected=Expected)


def test_the_weight_may_be_transposed() -> None:
    mod = module(
        {"x": (24, 40), "w": (32, 40), "b": (32,)},
        lambda emit, x, w, b: op.nn.relu(op.add(op.matmul(x, op.permute_dims(w)), b)),
    )
    check_fusion(mod, groups=[["relax.permute_dims", MATMUL, ADD, "relax.nn.relu"]])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 24, 40), (40, 32)),
        ((3, 24, 40), (3, 40, 32)),
        ((2, 3, 24, 40), (3, 40, 32)),
        ((1, 40), (40, 32)),
        ((40,), (40, 32)),
    ],
)
def test_batches_broadcast_and_vectors(left: tuple, right: tuple) -> None:
    mod = module(
        {"x": left, "w": right, "b": (32,)},
        lambda emit, x, w, b: op.nn.silu(op.add(op.matmul(x, w), b)),
    )
    check_fusion(mod, groups=[[MATMUL, ADD, "relax.nn.silu"]])


def test_half_precision_accumulated_in_single() -> None:
    def body(emit, x, w, b):
        wide = op.matmul(x, w, out_dtype="float32")
        return op.add(op.astype(wide, "float16"), b)

    half = "float16"
    mod = module({"x": ((24, 40), half), "w": ((40, 32), half), "b": ((32,), half)}, body)
    check_fusion(mod, groups=[[MATMUL, "relax.astype", ADD]])


def test_a_symbolic_number_of_rows() -> None:
    rows = tvm.tirx.Var("n", "int64")
    mod = module(
        {"x": (rows, 40), "w": (40, 32), "b": (32,)},
        lambda emit, x, w, b: op.nn.relu(op.add(op.matmul(x, w), b)),
    )
    check_fusion(mod, groups=[[MATMUL, ADD, "relax.nn.relu"]])


def test_scalar_constants_stay_immediates() -> None:
    def body(emit, x, w):
        return op.maximum(op.multiply(op.matmul(x, w), scalar(0.125)), scalar(-1.0))

    mod = module({"x": (24, 40), "w": (40, 32)}, body)
    check_fusion(mod, groups=[[MATMUL, "relax.multiply", "relax.maximum"]])
    outlined = outlined_module(mod)
    (group,) = [gv for gv in outlined.get_global_vars() if gv.name_hint != "main"]
    assert len(outlined[group].params) == 2, "a scalar became a parameter"


def test_heads_are_split_in_the_epilogue() -> None:
    def body(emit, x, w, b):
        heads = op.reshape(op.add(op.matmul(x, w), b), (2, 12, 4, 8))
        return op.permute_dims(heads, [0, 2, 1, 3])

    mod = module({"x": (2, 12, 40), "w": (40, 32), "b": (32,)}, body)
    check_fusion(mod, groups=[[MATMUL, ADD, "relax.reshape", "relax.permute_dims"]])


# -- hard cases ------------------------------------------------------------------------------------


def test_residual_diamond_around_the_matmul() -> None:
    def body(emit, x, w):
        hidden = emit(op.nn.relu(x), "hidden")
        return op.add(op.matmul(hidden, w), hidden)

    mod = module({"x": (24, 32), "w": (32, 32)}, body)
    check_fusion(mod, groups=[["relax.nn.relu", MATMUL, ADD]])


def test_one_tensor_on_both_sides_and_a_value_used_twice() -> None:
    def body(emit, x):
        product = emit(op.matmul(x, x), "product")
        return op.multiply(product, product)

    check_fusion(module({"x": (24, 24)}, body), groups=[[MATMUL, "relax.multiply"]])


def test_a_bias_that_depends_on_the_matmul_is_not_fused() -> None:
    """apache/tvm PR 14350: FuseOpsByPattern throws a cyclic dependency here."""

    def body(emit, x, w):
        product = emit(op.matmul(x, w), "product")
        bias = emit(op.sum(product, axis=0), "bias")
        return emit(op.add(product, bias), "y")

    check_fusion(
        module({"x": (24, 40), "w": (40, 32)}, body),
        groups=[[MATMUL], ["relax.sum", ADD]],
        cut={
            ("product", "bias"): Code.TWO_ANCHORS,
            ("product", "out"): (
                Code.NOT_CONVEX,
                "out also reads a value computed from the kernel's result",
            ),
        },
    )


def test_no_rows_at_all() -> None:
    mod = module(
        {"x": (0, 40), "w": (40, 32), "b": (32,)},
        lambda emit, x, w, b: op.nn.relu(op.add(op.matmul(x, w), b)),
    )
    check_fusion(mod, groups=[[MATMUL, ADD, "relax.nn.relu"]])


# -- near misses -----------------------------------------------------------------------------------


def test_a_product_that_is_an_output_is_stored() -> None:
    def body(emit, x, w, b):
        biased = emit(op.add(op.matmul(x, w), b), "biased")
        return biased, op.nn.relu(biased)

    check_fusion(
        module({"x": (24, 40), "w": (40, 32), "b": (32,)}, body),
        groups=[[MATMUL, ADD], ["relax.nn.relu"]],
        cut={("out", "out1"): (Code.MULTI_USE, "out is an output and is stored anyway")},
    )


def test_a_product_with_two_readers_is_stored() -> None:
    def body(emit, x, w):
        product = emit(op.matmul(x, w), "product")
        return emit(op.nn.relu(product), "a"), emit(op.tanh(product), "b")

    check_fusion(
        module({"x": (24, 40), "w": (40, 32)}, body),
        groups=[[MATMUL], ["relax.nn.relu"], ["relax.tanh"]],
        cut={
            ("product", "out"): (
                Code.MULTI_USE,
                "product has 2 readers and is stored for the others",
            ),
            ("product", "out1"): Code.MULTI_USE,
        },
    )


def test_two_matmuls_are_two_kernels() -> None:
    def body(emit, x, w, v):
        return op.matmul(emit(op.nn.relu(op.matmul(x, w)), "hidden"), v)

    check_fusion(
        module({"x": (24, 40), "w": (40, 32), "v": (32, 16)}, body),
        groups=[[MATMUL, "relax.nn.relu"], [MATMUL]],
        cut={
            ("hidden", "out"): (
                Code.TWO_ANCHORS,
                "matmul and matmul are kernels of their own; no schedule rule has both",
            )
        },
    )


def test_exp_before_a_matmul_is_not_repeated() -> None:
    mod = module(
        {"x": (24, 40), "w": (40, 32)},
        lambda emit, x, w: op.matmul(emit(op.exp(x), "grown"), w),
    )
    text = "relax.exp on 24x40 would be computed again for each of the 24x32 elements that read it"
    check_fusion(
        mod,
        groups=[["relax.exp"], [MATMUL]],
        cut={("grown", "out"): (Code.RECOMPUTE_COSTS_MORE, text)},
    )


def test_a_sum_with_a_larger_tensor_is_no_epilogue() -> None:
    mod = module(
        {"x": (1, 40), "w": (40, 32), "r": (24, 32)},
        lambda emit, x, w, r: emit(op.add(emit(op.matmul(x, w), "product"), r), "y"),
    )
    check_fusion(
        mod,
        groups=[[MATMUL], [ADD]],
        cut={("product", "out"): (Code.SHAPE, "out is 24x32, the kernel makes 1x32")},
    )


def test_a_concatenation_is_no_epilogue() -> None:
    mod = module(
        {"x": (24, 40), "w": (40, 32), "r": (24, 8)},
        lambda emit, x, w, r: op.concat([emit(op.matmul(x, w), "product"), r], axis=1),
    )
    text = "matmul kernels take no relax.concat last"
    check_fusion(
        mod,
        groups=[[MATMUL], ["relax.concat"]],
        cut={("product", "out"): (Code.OPERATOR, text)},
    )


@pytest.mark.parametrize(
    ("fuel", "groups"),
    [
        (0, []),
        (1, [[MATMUL, "relax.nn.relu"]]),
        (2, [[MATMUL, "relax.nn.relu"], [MATMUL, "relax.tanh"]]),
    ],
)
def test_fuel_limits_the_fusions(fuel: int, groups: list[list[str]]) -> None:
    def body(emit, x, w, v):
        hidden = emit(op.nn.relu(emit(op.matmul(x, w), "first")), "hidden")
        return op.tanh(emit(op.matmul(hidden, v), "second"))

    text = f"only the first {fuel} fusions are used"
    spent = {("first", "hidden"): Code.OUT_OF_FUEL, ("second", "out"): (Code.OUT_OF_FUEL, text)}
    cut = dict(list(spent.items())[fuel:]) | {
        ("hidden", "second"): Code.TWO_ANCHORS if fuel == 2 else Code.OPERATOR
    }
    check_fusion(
        module({"x": (24, 40), "w": (40, 32), "v": (32, 16)}, body),
        groups=groups,
        options=Options(verify=False, fuel=fuel),
        cut=cut,
        rejects={("matmul", "second"): (Code.OUT_OF_FUEL, text)} if fuel < 2 else {},
    )
