"""Verification finds a wrong kernel, and the compiler then does without it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from lecture import lecture_module
from tvm import relax, tirx
from tvm.ir.prim.expr import Max

import tvmfuse
from tvmfuse import compiler
from tvmfuse.passes.expand_norm import expand_norm
from tvmfuse.passes.widen import widen
from tvmfuse.verify import Errors, compare


def test_a_wrong_kernel_is_found_split_back_and_reported(monkeypatch: pytest.MonkeyPatch):
    real = compiler.finish_kernels

    def sabotage(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
        """Make relu's bound 0.125 in every kernel that has more than a relu."""
        mod = real(mod, target)
        for symbol, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and len(func.params) == 4:

                def wrong(value: tvm.ir.Expr) -> object:
                    return tirx.max(value.a, tirx.FloatImm("float32", 0.125))

                broken = tvm_ffi.structural_map(func, [(Max, wrong)])
                mod.update_func(symbol, broken)
        return mod

    monkeypatch.setattr(compiler, "finish_kernels", sabotage)
    executable, report = tvmfuse.compile(lecture_module(), "llvm")
    assert not report.ok
    failed = [check for check in report.verification if check.ok is False]
    assert [check.symbol for check in failed] == ["fused_matmul_add_relu"]
    codes = {(edge.producer, edge.consumer): edge.code for edge in report.edges}
    assert codes == {("h", "a"): "VERIFICATION_FAILED", ("a", "y"): "FUSED"}
    values = [np.zeros(s, "float32") for s in ((64, 128), (128, 96), (96,))]
    machine = relax.VirtualMachine(executable, tvm.cpu())
    got = machine["main"](*[tvm.runtime.tensor(v) for v in values]).numpy()
    assert not got.any()


def test_compare_forgives_what_the_operators_themselves_do():
    exact = np.array([1.0, 2.0, np.inf, np.nan])
    own = np.array([1.0, 2.0, np.inf, np.nan], "float32")
    assert compare(own, exact, own) == Errors(0.0, 0.0, 0.0, 0)
    far = np.array([1.0, 2.5, np.inf, np.nan], "float32")
    errors = compare(far, exact, own)
    assert errors.absolute == 0.5 and errors.wrong == 0
    assert errors.relative == errors.excess == pytest.approx(0.5 / (2 + 2.5**0.5))
    forgiven = compare(far, exact, far)
    assert forgiven.excess == 0.0 and forgiven.relative == errors.relative


@pytest.mark.parametrize("bad", [[1.0, np.nan], [1.0, np.inf]])
def test_compare_counts_what_should_have_been_finite(bad: list[float]):
    good = np.array([1.0, 2.0])
    assert compare(np.array(bad, "float32"), good, good.astype("float32")).wrong == 1


def test_compare_counts_a_lost_nan_and_wrong_integers():
    nan = np.array([np.nan, 1.0])
    assert compare(np.array([0.0, 1.0], "float32"), nan, nan.astype("float32")).wrong == 1
    ones = np.array([1, 2, 3])
    assert compare(np.array([1, 2, 4]), ones, ones).wrong == 1


def _function(build) -> relax.Function:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    gamma = relax.Var("gamma", relax.TensorType((6,), "float32"))
    beta = relax.Var("beta", relax.TensorType((6,), "float32"))
    with builder.function("main", [x, gamma, beta]):
        builder.emit_func_output(builder.emit(build(x, gamma, beta)))
    return builder.get()["main"]


def test_widen_computes_a_layer_norm_in_float64():
    function = _function(lambda x, g, b: relax.op.nn.layer_norm(x, g, b, axes=[-1], epsilon=1e-5))
    wide = widen(function)
    assert wide.ret_ty.dtype == "float64"
    machine = relax.VirtualMachine(
        tvm.compile(tvm.IRModule({"main": wide.with_attr("global_symbol", "main")}), "llvm"),
        tvm.cpu(),
    )
    generator = np.random.default_rng(0)
    x, gamma, beta = (generator.standard_normal(s) for s in ((4, 6), (6,), (6,)))
    got = machine["main"](*[tvm.runtime.tensor(v) for v in (x, gamma, beta)]).numpy()
    want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, want * gamma + beta, rtol=1e-12, atol=1e-12)


def test_expand_norm_leaves_other_operators():
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    assert expand_norm(relax.op.exp(x)) is None
