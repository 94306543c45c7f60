"""Elementwise operators and data movement that no anchor took: one kernel per sink."""

from __future__ import annotations

import numpy as np
import tvm
from fusion import OPTIONS, check_fusion, module, plan_of, run, scalar
from tvm import relax, te
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvmfuse
from tvmfuse.passes.partition import MAX_GROUP
from tvmfuse.reasons import Code

op = relax.op
NAMES = "add exp sin cos negative matmul"
ADD, EXP, SIN, COS, NEGATIVE, MATMUL = (f"relax.{name}" for name in NAMES.split())


def test_two_readers_of_one_value_are_one_kernel_with_two_outputs() -> None:
    @I.ir_module
    class Expected:
        @R.function(private=True)
        def fused_exp_sin_cos(
            x: R.Tensor((32, 48), "float32"),
        ) -> R.Tuple(R.Tensor((32, 48), "float32"), R.Tensor((32, 48), "float32")):
            R.func_attr({"Primitive": True})
            with R.dataflow():
                grown: R.Tensor((32, 48), "float32") = R.exp(x)
                out: R.Tensor((32, 48), "float32") = R.sin(grown)
                out1: R.Tensor((32, 48), "float32") = R.cos(grown)
                R.output(out, out1)
            return (out, out1)

        @R.function
        def main(
            x: R.Tensor((32, 48), "float32"),
        ) -> R.Tuple(R.Tensor((32, 48), "float32"), R.Tensor((32, 48), "float32")):
            cls = Expected
            with R.dataflow():
                results: R.Tuple(R.Tensor((32, 48), "float32"), R.Tensor((32, 48), "float32")) = (
                    cls.fused_exp_sin_cos(x)
                )
                out: R.Tensor((32, 48), "float32") = results[0]
                out1: R.Tensor((32, 48), "float32") = results[1]
                R.output(out, out1)
            return (out, out1)

    def body(emit, x):
        grown = emit(op.exp(x), "grown")
        return op.sin(grown), op.cos(grown)

    check_fusion(module({"x": (32, 48)}, body), groups=[[EXP, SIN, COS]], expected=Expected)


def test_a_chain_with_broadcast_operands_is_one_kernel() -> None:
    def body(emit, x, row, column):
        return op.sqrt(op.abs(op.multiply(op.add(x, row), column)))

    mod = module({"x": (32, 48), "row": (48,), "column": (32, 1)}, body)
    check_fusion(mod, groups=[[ADD, "relax.multiply", "relax.abs", "relax.sqrt"]])


def test_data_movement_is_index_arithmetic() -> None:
    def body(emit, x, y):
        turned = op.permute_dims(op.reshape(x, (48, 32)))
        joined = op.concat([op.negative(turned), y], axis=1)
        return op.nn.relu(op.strided_slice(joined, axes=[1], begin=[8], end=[56]))

    names = "reshape permute_dims negative concat strided_slice nn.relu"
    check_fusion(
        module({"x": (32, 48), "y": (32, 24)}, body),
        groups=[[f"relax.{name}" for name in names.split()]],
    )


def test_an_output_in_the_middle_of_a_chain_is_written_too() -> None:
    def body(emit, x):
        middle = emit(op.negative(x), "middle")
        return middle, op.exp(middle)

    check_fusion(module({"x": (32, 48)}, body), groups=[[NEGATIVE, EXP]])


def test_a_symbolic_extent() -> None:
    rows = tvm.tirx.Var("n", "int64")
    mod = module({"x": (rows, 48), "b": (48,)}, lambda emit, x, b: op.exp(op.add(x, b)))
    check_fusion(mod, groups=[[ADD, EXP]])


def test_no_elements_at_all() -> None:
    mod = module({"x": (0, 48), "b": (48,)}, lambda emit, x, b: op.exp(op.add(x, b)))
    check_fusion(mod, groups=[[ADD, EXP]])


def test_scalar_constants() -> None:
    mod = module(
        {"x": (32, 48)},
        lambda emit, x: op.add(op.multiply(op.negative(x), scalar(0.5)), scalar(2.0)),
    )
    check_fusion(mod, groups=[[NEGATIVE, "relax.multiply", ADD]])


def test_a_cheap_value_is_computed_again_across_a_broadcast() -> None:
    mod = module({"x": (48,), "y": (32, 48)}, lambda emit, x, y: op.add(op.negative(x), y))
    check_fusion(mod, groups=[[NEGATIVE, ADD]])


# -- near misses -----------------------------------------------------------------------------------


def test_an_exp_chain_is_not_repeated_across_a_broadcast() -> None:
    """apache/tvm issue 20342: FuseOps computes the chain once per row of the result."""

    def body(emit, x, y):
        chain = emit(op.exp(op.negative(x)), "chain")
        return op.add(chain, y)

    text = "relax.exp on 48 would be computed again for each of the 32x48 elements that read it"
    check_fusion(
        module({"x": (48,), "y": (32, 48)}, body),
        groups=[[NEGATIVE, EXP], [ADD]],
        cut={("chain", "out"): (Code.RECOMPUTE_COSTS_MORE, text)},
    )


def test_readers_of_other_shapes_do_not_join() -> None:
    def body(emit, x, y):
        shared = emit(op.negative(x), "shared")
        return op.exp(shared), op.add(shared, y)

    text = "shared has 2 readers and is stored for the others"
    check_fusion(
        module({"x": (48,), "y": (32, 48)}, body),
        groups=[[NEGATIVE, EXP], [ADD]],
        cut={("shared", "out1"): (Code.MULTI_USE, text)},
    )


def test_readers_that_depend_on_each_other_through_a_matmul_do_not_join() -> None:
    def body(emit, x, w):
        shared = emit(op.exp(x), "shared")
        product = emit(op.matmul(emit(op.sin(shared), "turned"), w), "product")
        return product, op.add(shared, product)

    repeated = (
        "relax.sin on 32x32 would be computed again for each of the 32x32 elements that read it"
    )
    check_fusion(
        module({"x": (32, 32), "w": (32, 32)}, body),
        groups=[[EXP, SIN], [MATMUL], [ADD]],
        cut={
            ("turned", "out"): (Code.RECOMPUTE_COSTS_MORE, repeated),
            ("out", "out1"): (Code.MULTI_USE, "out is an output and is stored anyway"),
            ("shared", "out1"): (
                Code.NOT_CONVEX,
                "its readers depend on each other through another kernel",
            ),
        },
    )


def test_a_value_that_another_kernel_reads_is_written_too() -> None:
    def body(emit, x, w):
        shared = emit(op.exp(x), "shared")
        return op.matmul(shared, w), op.cos(shared)

    check_fusion(
        module({"x": (32, 32), "w": (32, 32)}, body),
        groups=[[EXP, COS], [MATMUL]],
        cut={("shared", "out"): Code.MULTI_USE},
    )


def test_a_lone_reshape_is_no_kernel() -> None:
    def body(emit, x):
        flat = emit(op.reshape(emit(op.exp(x), "grown"), (32 * 48,)), "flat")
        return flat, op.negative(flat)

    check_fusion(
        module({"x": (32, 48)}, body),
        groups=[[EXP], [NEGATIVE]],
        cut={
            ("grown", "out"): (Code.VIEW, "out is a reshape that renames memory"),
            ("out", "out1"): (Code.VIEW, "out is an output and is stored anyway"),
        },
    )


def test_a_split_becomes_slices_of_the_same_kernel() -> None:
    def body(emit, x):
        halves = emit(op.split(emit(op.exp(x), "grown"), 2, axis=1), "halves")
        return op.add(emit(halves[0], "left"), emit(halves[1], "right"))

    slices = ["relax.strided_slice", "relax.strided_slice"]
    check_fusion(module({"x": (32, 48)}, body), groups=[[EXP, *slices, ADD]], cut={})


def test_match_cast_is_a_barrier() -> None:
    """apache/tvm issue 20195: FuseOps moves a call before the match_cast that binds its symbol."""

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n", 8), "float32"), y: R.Tensor(ndim=2, dtype="float32")):
            m = T.int64()
            with R.dataflow():
                a = R.exp(x)
                known = R.match_cast(y, R.Tensor((m, 8), "float32"))
                b = R.negative(known)
                c = R.sin(b)
                R.output(a, c)
            return (a, c)

    x, y = np.full((3, 8), 0.5, "float32"), np.full((2, 8), 0.25, "float32")
    plan = check_fusion(
        Module,
        groups=[[EXP], [NEGATIVE, SIN]],
        cut={("known", "b"): (Code.OPAQUE, "match_cast is called as it is")},
        numerics=False,
    )
    assert [node.name for node in plan.graph.nodes] == ["a", "known", "b", "c"]
    executable, _ = tvmfuse.compile(Module, "llvm", options=OPTIONS)
    found = run(executable, [x, y])
    np.testing.assert_allclose(found[0], np.exp(x), rtol=1e-5)
    np.testing.assert_allclose(found[1], np.sin(-y), rtol=1e-5)


def call_of(scheduled: bool) -> tvm.IRModule:
    """``relu(double(exp(x)))`` where ``double`` is a PrimFunc of the module."""
    source = te.placeholder((32, 48), "float32", name="source")
    double = te.compute((32, 48), lambda i, j: source[i, j] * 2.0, name="double")
    func = te.create_prim_func([source, double]).without_attr("global_symbol")
    func = func.with_attr("op_pattern", 0)
    if scheduled:
        func = func.with_attr("tirx.is_scheduled", True)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((32, 48), "float32"))
    with builder.function("main", [x]):
        symbol = builder.add_func(func, "double")
        with builder.dataflow():
            grown = builder.emit(op.exp(x), "grown")
            call = relax.call_tir(symbol, [grown], out_ty=relax.TensorType((32, 48), "float32"))
            doubled = builder.emit(call, "doubled")
            out = builder.emit_output(op.nn.relu(doubled), "out")
        builder.emit_func_output(out)
    return builder.get()


def test_a_primfunc_that_computes_elementwise_is_fused() -> None:
    check_fusion(
        call_of(scheduled=False), groups=[[EXP, "relax.call_tir", "relax.nn.relu"]], numerics=False
    )


def test_a_primfunc_that_someone_scheduled_is_left_alone() -> None:
    text = "relax.call_tir is called as it is"
    check_fusion(
        call_of(scheduled=True),
        groups=[[EXP], ["relax.nn.relu"]],
        cut={("grown", "doubled"): (Code.OPAQUE, text), ("doubled", "out"): (Code.OPAQUE, text)},
        numerics=False,
    )


def test_a_group_is_at_most_a_readable_kernel() -> None:
    def body(emit, x):
        for step in range(MAX_GROUP + 10):
            x = op.sin(x) if step % 2 else op.negative(x)
        return x

    plan = plan_of(module({"x": (32, 48)}, body))
    assert sorted(len(match.nodes) for match in plan.matches) == [10, MAX_GROUP]
