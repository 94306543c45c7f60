"""Check every fused kernel that was compiled against its unfused operators in float64.

What runs is the kernel in the executable itself, not a copy compiled for the check.  The
reference is the group's Relax function, each operator by itself, in float64 and once more in its
own dtype; the tolerance follows the standard forward error bound of a sum of K rounded terms,
eps * sqrt(K) in expectation (Higham, "Accuracy and Stability of Numerical Algorithms", ch. 4),
and is widened only where the unfused operators in the same dtype are as far off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from .passes.fuse import FusedModule
from .passes.widen import widen
from .report.data import Verification
from .sample_inputs import SETS, constant_value, sample

if TYPE_CHECKING:
    from .cudasim import Finding

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# Unscheduled loops gain little from LLVM's higher levels, which take twice as long.
REFERENCE_TARGET = {"kind": "llvm", "opt-level": 1}
# Roundings per operator, and the polynomial exp, erf and tanh, together stay under 32 units.
UNITS = 32.0


@dataclass(frozen=True)
class _Subject:
    symbol: str
    function: relax.Function
    fixed: dict[int, np.ndarray]


def verify_groups(
    fused: FusedModule, executable: relax.VMExecutable, device: tvm.runtime.Device
) -> list[Verification]:
    """One result per distinct function of the plan, fused or alone under one of our schedules."""
    subjects = _subjects(fused)
    wide: dict[str, relax.Function] = {}
    results: list[Verification] = []
    for subject in subjects:
        reference = widen(subject.function)
        if isinstance(reference, str):
            results.append(Verification(subject.symbol, None, None, None, None, reference))
            continue
        wide[subject.symbol] = reference
    if not wide:
        return results
    references = _References([s for s in subjects if s.symbol in wide], wide)
    for subject in subjects:
        if subject.symbol in wide:
            kernel = executable.mod.imports[0][subject.symbol]
            results.append(_check(subject, kernel, references, device, fused))
    return results


def _subjects(fused: FusedModule) -> list[_Subject]:
    """Each fused function with the constant arguments of its first call."""
    calls: dict[str, relax.Call] = {}
    for name in fused.plans:
        for block in fused.outlined[name].body.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                    calls.setdefault(value.op.name_hint, value)
    subjects: list[_Subject] = []
    for found in fused.groups.values():
        for group in found:
            if all(s.symbol != group.symbol for s in subjects):
                call = calls[group.symbol]
                values = {i: constant_value(arg) for i, arg in enumerate(call.args)}
                fixed = {i: value for i, value in values.items() if value is not None}
                subjects.append(_Subject(group.symbol, fused.outlined[group.symbol], fixed))
    return subjects


def with_findings(
    checks: Sequence[Verification], findings: Sequence[Finding]
) -> list[Verification]:
    """``checks`` with a kernel failed for which the emulated device's checker found a fault."""
    faults: dict[str, str] = {}
    for finding in findings:
        faults.setdefault(finding.kernel.removesuffix("_kernel"), str(finding))
    return [
        replace(check, ok=False, note=faults[check.symbol]) if check.symbol in faults else check
        for check in checks
    ]


class _References:
    """The unfused operators, compiled once for this CPU in both precisions."""

    def __init__(self, subjects: Sequence[_Subject], wide: dict[str, relax.Function]) -> None:
        functions: dict[str, relax.Function] = {}
        for subject in subjects:
            own = subject.function.without_attr("Primitive")
            functions[f"own_{subject.symbol}"] = own.with_attr(
                "global_symbol", f"own_{subject.symbol}"
            )
            functions[f"wide_{subject.symbol}"] = wide[subject.symbol].with_attr(
                "global_symbol", f"wide_{subject.symbol}"
            )
        executable = tvm.compile(
            tvm.IRModule(functions), target=tvm.target.Target(REFERENCE_TARGET)
        )
        self.machine = relax.VirtualMachine(executable, tvm.cpu())

    def run(self, name: str, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        tensors = [tvm.runtime.tensor(argument) for argument in arguments]
        result = self.machine[name](*tensors)
        outputs = [result] if hasattr(result, "numpy") else list(result)
        return [output.numpy() for output in outputs]


def _check(
    subject: _Subject,
    kernel: tvm_ffi.Function,
    references: _References,
    device: tvm.runtime.Device,
    fused: FusedModule,
) -> Verification:
    lowered = fused.lowered[subject.symbol]
    tolerance = _tolerance(subject, lowered)
    worst_abs, worst_rel, note = 0.0, 0.0, ""
    for seed, kind in enumerate(SETS):
        arguments = sample(subject.function, subject.fixed, kind, seed)
        if arguments is None:
            return Verification(
                subject.symbol, None, None, tolerance, None, "its shapes are symbolic"
            )
        exact = references.run(f"wide_{subject.symbol}", [_wide(a) for a in arguments])
        own = references.run(f"own_{subject.symbol}", arguments)
        outputs = _run_kernel(kernel, arguments, own, device)
        for got, want, unfused in zip(outputs, exact, own, strict=True):
            errors = compare(got, want, unfused)
            worst_abs = max(worst_abs, errors.absolute)
            worst_rel = max(worst_rel, errors.relative)
            if errors.wrong:
                note = f"{errors.wrong} elements are finite where the operators' are not, or unlike"
                return Verification(
                    subject.symbol, worst_abs, worst_rel, tolerance, False, f"{kind}: {note}"
                )
            if errors.excess > tolerance and not note:
                note = f"{kind}: error {errors.excess:.2e} is over the tolerance {tolerance:.2e}"
    return Verification(subject.symbol, worst_abs, worst_rel, tolerance, not note, note)


def _wide(array: np.ndarray) -> np.ndarray:
    is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype("float64") if is_float else array


def _run_kernel(
    kernel: tvm_ffi.Function,
    arguments: Sequence[np.ndarray],
    like: Sequence[np.ndarray],
    device: tvm.runtime.Device,
) -> list[np.ndarray]:
    inputs = [tvm.runtime.tensor(argument, device) for argument in arguments]
    # Poisoned: a kernel that leaves an element unwritten must not pass by luck.
    poison = [np.full(a.shape, np.nan if a.dtype.kind == "f" else 77 % 2, a.dtype) for a in like]
    outputs = [tvm.runtime.tensor(array, device) for array in poison]
    kernel(*inputs, *outputs)
    return [output.numpy() for output in outputs]


def _tolerance(subject: _Subject, lowered: tirx.PrimFunc) -> float:
    """UNITS * eps * sqrt(longest reduction), of the coarsest dtype in the group."""
    dtypes = [str(p.ty.dtype) for p in lowered.params if str(p.ty.dtype) in EPSILON]
    epsilon = max((EPSILON[d] for d in dtypes), default=EPSILON["float32"])
    return UNITS * epsilon * math.sqrt(_longest_reduction(lowered))


def _longest_reduction(func: tirx.PrimFunc) -> int:
    longest = 1

    def visit(block: tvm.s_tir.SBlock) -> None:
        nonlocal longest
        terms = 1
        for axis in block.iter_vars:
            if axis.iter_type == tirx.IterVar.CommReduce and isinstance(
                axis.dom.extent, tirx.IntImm
            ):
                terms *= int(axis.dom.extent)
        longest = max(longest, terms)

    tvm_ffi.structural_walk(func.body, ((tvm.s_tir.SBlock, visit),))
    return longest


@dataclass(frozen=True)
class Errors:
    """Largest errors of one tensor.

    ``relative`` is |got - exact| / (|exact| + rms(exact)); ``excess`` is the same of what goes
    beyond twice the error of the unfused operators; ``wrong`` counts elements of another kind:
    infinite or not a number where both references are finite, finite where both are the same
    infinity or not a number, or (integers) simply unequal.
    """

    absolute: float
    relative: float
    excess: float
    wrong: int


def compare(got: np.ndarray, exact: np.ndarray, unfused: np.ndarray) -> Errors:
    """Errors of ``got`` against the float64 reference and the unfused operators' own result."""
    if got.dtype.kind in "iub":
        wrong = int(np.count_nonzero(got != unfused))
        return Errors(float(wrong > 0), float(wrong > 0), float(wrong > 0), wrong)
    got64, own64 = got.astype("float64"), unfused.astype("float64")
    regular = np.isfinite(exact) & np.isfinite(own64)
    wrong = int(np.count_nonzero(regular & ~np.isfinite(got64)))
    same_kind = (np.isnan(exact) & np.isnan(own64)) | ((exact == own64) & np.isinf(exact))
    agrees = (np.isnan(exact) & np.isnan(got64)) | (exact == got64)
    wrong += int(np.count_nonzero(same_kind & ~agrees))
    usable = regular & np.isfinite(got64)
    if not usable.any():
        return Errors(0.0, 0.0, 0.0, wrong)
    difference = np.abs(got64[usable] - exact[usable])
    allowed = 2.0 * np.abs(own64[usable] - exact[usable])
    scale = np.abs(exact[usable]) + math.sqrt(float(np.mean(np.square(exact[usable]))))
    relative = _quotient(difference, scale)
    excess = _quotient(np.maximum(difference - allowed, 0.0), scale)
    return Errors(float(difference.max()), relative, excess, wrong)


def _quotient(error: np.ndarray, scale: np.ndarray) -> float:
    """The largest error over its scale; an error where the exact value is nothing is infinite."""
    result = np.divide(error, scale, out=np.zeros_like(error), where=scale > 0)
    result[(scale == 0) & (error > 0)] = np.inf
    return float(result.max())
