"""The pass and the pipeline inside TVM's own machinery."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from lecture import INPUTS, OUTPUTS, ROWS, lecture_module
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

import tvmfuse


def run(executable: relax.VMExecutable, arrays: list[np.ndarray], name: str = "main") -> np.ndarray:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine[name](*[tvm.runtime.tensor(array) for array in arrays]).numpy()


def arrays() -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    shapes = ((ROWS, INPUTS), (INPUTS, OUTPUTS), (OUTPUTS,))
    return [generator.standard_normal(shape).astype("float32") for shape in shapes]


def expected(values: list[np.ndarray]) -> np.ndarray:
    x, weight, bias = values
    return np.maximum(x @ weight + bias, 0.0)


def test_the_pipeline_goes_into_tvm_compile():
    mod, target = lecture_module(), tvm.target.Target("llvm")
    before = tvm_ffi.structural_hash(mod)
    executable = tvm.compile(mod, target=target, relax_pipeline=tvmfuse.pipeline(target))
    np.testing.assert_allclose(run(executable, arrays()), expected(arrays()), rtol=1e-4, atol=1e-4)
    assert tvm_ffi.structural_hash(mod) == before


def test_the_pipeline_takes_the_current_target():
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    executable = tvm.compile(lecture_module(), target=target, relax_pipeline=tvmfuse.pipeline())
    np.testing.assert_allclose(run(executable, arrays()), expected(arrays()), rtol=1e-4, atol=1e-4)


def test_fuse_is_a_pass_that_stock_passes_lower_to_one_primfunc():
    mod = lecture_module()
    before = tvm_ffi.structural_hash(mod)
    passes = [
        tvmfuse.Fuse("llvm"),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    assert isinstance(passes[0], tvm.transform.Pass)
    result = tvm.transform.Sequential(passes)(mod)
    functions = [gv.name_hint for gv, f in result.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert functions == ["fused_matmul_add_relu"]
    assert tvm_ffi.structural_hash(mod) == before


def test_schedule_is_a_pass_too():
    target = tvm.target.Target("llvm")
    passes = [
        tvmfuse.Fuse(target),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseTIR(),
        tvmfuse.Schedule(target),
    ]
    result = tvm.transform.Sequential(passes)(lecture_module())
    assert result["fused_matmul_add_relu"].attrs["tirx.is_scheduled"]


def test_instruments_see_the_pass():
    seen: list[str] = []

    @tvm.instrument.pass_instrument
    class Names:
        def run_before_pass(self, _mod, info):
            seen.append(info.name)

    with tvm.transform.PassContext(instruments=[Names()]):
        tvmfuse.Fuse("llvm")(lecture_module())
    assert "tvmfuse.Fuse" in seen


def test_function_attributes_and_parameter_order_stay():
    mod = lecture_module()
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("num_input", 1))
    fused = tvmfuse.Fuse("llvm")(mod)
    assert int(fused["main"].attrs["num_input"]) == 1
    assert [p.name for p in fused["main"].params] == ["x", "W", "b"]


def test_several_functions_are_fused_each():
    @I.ir_module
    class Two:
        @R.function
        def first(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            with R.dataflow():
                a = R.exp(x)
                y = R.add(a, x)
                R.output(y)
            return y

        @R.function
        def second(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            with R.dataflow():
                a = R.tanh(x)
                y = R.multiply(a, x)
                R.output(y)
            return y

    executable, report = tvmfuse.compile(Two, "llvm")
    x = np.random.default_rng(2).standard_normal((8, 8)).astype("float32")
    np.testing.assert_allclose(run(executable, [x], "first"), np.exp(x) + x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(executable, [x], "second"), np.tanh(x) * x, rtol=1e-5, atol=1e-6)
    assert {edge.function for edge in report.edges} == {"first", "second"}


@pytest.mark.parametrize("bound", [True, False], ids=["parameters bound", "parameters free"])
def test_parameters_may_be_bound_or_free(bound: bool):
    mod, values = lecture_module(), arrays()
    inputs = values
    if bound:
        weights = {"W": tvm.runtime.tensor(values[1]), "b": tvm.runtime.tensor(values[2])}
        mod = relax.transform.BindParams("main", weights)(mod)
        inputs = values[:1]
    executable, report = tvmfuse.compile(mod, "llvm", options=tvmfuse.Options(verify=False))
    np.testing.assert_allclose(run(executable, inputs), expected(values), rtol=1e-4, atol=1e-4)
    assert report.after.kernels == 1


def test_fuel_limits_the_fusions():
    @I.ir_module
    class Chain:
        @R.function
        def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (8, 8), "float32"
        ):
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.nn.relu(a)
                c = R.matmul(b, w)
                d = R.nn.relu(c)
                R.output(d)
            return d

    kernels = []
    for fuel in (0, 1, None):
        options = tvmfuse.Options(fuel=fuel, verify=False)
        _, report = tvmfuse.compile(Chain, "llvm", options=options)
        kernels.append(report.after.kernels)
    assert kernels == [4, 3, 2]


def test_a_pattern_of_your_own_is_used_and_its_check_gives_the_reason():
    from tvm.relax.dpl import is_op, wildcard

    from tvmfuse import Growth, Pattern
    from tvmfuse.patterns import DEFAULT

    pattern = Pattern(
        name="lonely_exp",
        root=is_op("relax.exp")(wildcard()),
        check=lambda match: None if match.node.dtype == "float32" else "only float32",
        growth=Growth(epilogue=frozenset()),
    )

    def compiled(dtype: str) -> tvmfuse.Report:
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4, 8), dtype))
        with builder.function("main", [x]):
            with builder.dataflow():
                result = builder.emit_output(relax.op.negative(builder.emit(relax.op.exp(x))))
            builder.emit_func_output(result)
        return tvmfuse.compile(builder.get(), "llvm", patterns=(pattern, *DEFAULT))[1]

    assert compiled("float32").pattern_counts() == {"elementwise": 1, "lonely_exp": 1}
    report = compiled("float64")
    assert report.pattern_counts() == {"elementwise": 1}
    assert [(r.pattern, r.code, r.reason) for r in report.rejections] == [
        ("lonely_exp", "PATTERN_CHECK", "only float32")
    ]


def test_a_group_that_tvm_cannot_merge_is_cut_back_with_the_reason():
    from tvm.relax.dpl import is_op, wildcard

    from tvmfuse import Pattern
    from tvmfuse.patterns import DEFAULT

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            total = builder.emit(relax.op.cumsum(x, axis=1))
            result = builder.emit_output(relax.op.exp(total))
        builder.emit_func_output(result)
    pattern = Pattern("cumsum", is_op("relax.cumsum")(wildcard()))
    executable, report = tvmfuse.compile(builder.get(), "llvm", patterns=(pattern, *DEFAULT))
    assert "cumsum" not in report.pattern_counts()
    (edge,) = report.edges
    assert (edge.code, "buffers of any offset" in edge.reason) == ("OPAQUE", True)
    values = np.random.default_rng(3).standard_normal((4, 8)).astype("float32")
    np.testing.assert_allclose(
        run(executable, [values]), np.exp(values.cumsum(axis=1)), rtol=1e-4, atol=1e-4
    )


def test_the_rules_run_under_plain_dlight():
    from tvm.s_tir import dlight
    from tvmfuse.schedules import rules_for

    from tvmfuse.target import resolve_target

    target = resolve_target("llvm")
    passes = [
        tvmfuse.Fuse(target),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseTIR(),
    ]
    lowered = tvm.transform.Sequential(passes)(lecture_module())
    with target:
        scheduled = dlight.ApplyDefaultSchedule(*rules_for(target))(lowered)
    assert scheduled["fused_matmul_add_relu"].attrs["tirx.is_scheduled"]
