"""Accuracy, special values, and vectorisation of the arithmetic that replaces exp, erf, ..."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from scipy import special
from tvm import ir, relax, s_tir, tirx
from tvm.target import Target
from tvmfuse.schedules.llvm.vector_math import vectorize_math
from workloads import lowered

TARGET = Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
COUNT = 1 << 18
# Relax operator, float64 reference, greatest error in units in the last place.
FUNCTIONS: dict[str, tuple[Callable, Callable, float]] = {
    "exp": (relax.op.exp, np.exp, 1.0),
    "sigmoid": (relax.op.sigmoid, special.expit, 3.0),
    "tanh": (relax.op.tanh, np.tanh, 5.0),
    "erf": (relax.op.erf, special.erf, 6.0),
}


def vector_loop(operator: Callable, count: int, rewrite: bool) -> tirx.PrimFunc:
    """``operator`` over ``count`` elements in a loop of 16-lane vectors."""
    func = lowered({"x": ((count,), "float32")}, operator)
    schedule = s_tir.Schedule(func)
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    _, lanes = schedule.split(schedule.get_loops(block)[0], factors=[None, 16])
    schedule.vectorize(lanes)
    scheduled = schedule.mod["main"]
    return vectorize_math(scheduled) if rewrite else scheduled


def compiled(func: tirx.PrimFunc) -> tvm.runtime.Executable:
    """The function built alone."""
    named = func.with_attr("global_symbol", "main")
    return tvm.compile(tvm.IRModule({"main": named}), target=TARGET)


def evaluated(operator: Callable, x: np.ndarray) -> np.ndarray:
    """``operator`` by the rewritten vector loop."""
    result = tvm.runtime.tensor(np.zeros_like(x))
    compiled(vector_loop(operator, x.size, rewrite=True))(tvm.runtime.tensor(x), result)
    return result.numpy()


def sweeps() -> np.ndarray:
    """Every bit pattern at a stride, the curved parts densely, and the special values."""
    patterns = np.arange(0, 2**32, 2**32 // COUNT, dtype=np.uint64).astype(np.uint32)
    edges = [np.inf, np.nan, 0.0, 1e-45, 1.1e-38, 88.7228, 88.73, 87.4, 103.9, 104.5, 3.4e38]
    parts = [
        patterns.view(np.float32),
        np.linspace(-110, 110, COUNT),
        np.linspace(-10, 10, COUNT),
        np.geomspace(1e-45, 1, COUNT),
        np.array(edges + [-edge for edge in edges]),
    ]
    values = np.concatenate([part.astype(np.float32) for part in parts])
    return np.concatenate([values, np.zeros(-values.size % 16, np.float32)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy_over_the_whole_range(name: str) -> None:
    operator, reference, ulps = FUNCTIONS[name]
    x = sweeps()
    result = evaluated(operator, x)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = reference(x.astype(np.float64))
        rounded = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(x))
    finite = np.isfinite(rounded)
    infinite = np.isinf(rounded)
    np.testing.assert_array_equal(result[infinite], rounded[infinite])
    # 1 / (1 + exp(-x)) has no subnormal results: exp(-x) is infinite there.
    floor = 3e-39 if name == "sigmoid" else 0.0
    error = np.abs(result[finite] - exact[finite])
    allowed = ulps * np.spacing(np.abs(rounded[finite])).astype(np.float64) + floor
    worst = np.argmax(error - allowed)
    assert error[worst] <= allowed[worst], (x[finite][worst], result[finite][worst])
    if name != "exp":
        assert np.abs(result[finite]).max() <= 1.0


def test_no_call_is_left_and_the_input_is_unchanged() -> None:
    func = lowered(
        {"x": ((64,), "float32")},
        lambda x: relax.op.multiply(relax.op.tanh(relax.op.exp(x)), relax.op.erf(x)),
    )
    before = tvm_ffi.structural_hash(func)
    rewritten = vectorize_math(func)
    names: list[str] = []
    tvm_ffi.structural_walk(
        rewritten,
        (ir.Call, lambda call: names.append(call.op.name) if isinstance(call.op, ir.Op) else None),
    )
    assert not {"tirx.exp", "tirx.erf", "tirx.tanh", "tirx.sigmoid"} & set(names)
    assert tvm_ffi.structural_hash(func) == before
    assert tvm_ffi.structural_equal(rewritten, vectorize_math(func))


def test_other_dtypes_and_functions_stay() -> None:
    double = lowered({"x": ((64,), "float64")}, relax.op.exp)
    assert tvm_ffi.structural_equal(vectorize_math(double), double)
    root = lowered({"x": ((64,), "float32")}, relax.op.sqrt)
    assert tvm_ffi.structural_equal(vectorize_math(root), root)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_loop_is_vector_code(name: str) -> None:
    """The rewritten loop has no library call left in its assembly; the original has one."""
    operator = FUNCTIONS[name][0]

    def calls(rewrite: bool) -> bool:
        code = compiled(vector_loop(operator, 1024, rewrite)).mod.inspect_source("asm")
        return any(
            "call" in line and symbol in line
            for line in code.splitlines()
            for symbol in ("expf", "erff", "tanhf")
        )

    assert calls(rewrite=False)
    assert not calls(rewrite=True)


def test_division_by_a_value_of_the_row_is_multiplication() -> None:
    func = lowered({"x": ((8, 64), "float32"), "y": ((8, 1), "float32")}, relax.op.divide)
    rewritten = vectorize_math(func)
    divisions: list[tirx.Div] = []
    tvm_ffi.structural_walk(rewritten, (tirx.Div, divisions.append))
    assert len(divisions) == 1
    assert isinstance(divisions[0].a, tirx.FloatImm) and divisions[0].a.value == 1.0
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(shape).astype("float32") for shape in ((8, 64), (8, 1)))
    result = tvm.runtime.tensor(np.zeros_like(x))
    compiled(rewritten)(tvm.runtime.tensor(x), tvm.runtime.tensor(y), result)
    np.testing.assert_allclose(result.numpy(), x / y, rtol=3e-7)


def test_division_along_the_vector_stays() -> None:
    func = lowered({"x": ((8, 64), "float32"), "y": ((64,), "float32")}, relax.op.divide)
    assert tvm_ffi.structural_equal(vectorize_math(func), func)
