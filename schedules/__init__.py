"""tvmfuse's schedule rules, one package per kind of target."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.target import Target

from .base import Declined, Scheduled, ScheduleRule, schedule_function

__all__ = [
    "Declined",
    "ScheduleRule",
    "Scheduled",
    "finish_for",
    "problems_for",
    "rules_for",
    "schedule_function",
]


def rules_for(target: Target) -> tuple[ScheduleRule, ...]:
    """The rules of ``target``'s kind, in the order in which they are tried.

    Raises ``ValueError`` for a kind that tvmfuse has no rules for.  The packages are imported
    here and not at the top, so that compiling for one kind loads only that kind's rules.
    """
    kind = target.kind.name
    if kind == "llvm":
        from .llvm import RULES
    elif kind == "cuda":
        from .cuda import RULES
    else:
        raise ValueError(f"no schedule rules for target kind {kind!r}; known: 'llvm', 'cuda'")
    return RULES


def problems_for(target: Target) -> Callable[[tirx.PrimFunc], str | None]:
    """What is wrong with a scheduled function on ``target``: not one kernel, or over a limit.

    On CPUs nothing can be: every PrimFunc is one call.
    """
    if target.kind.name != "cuda":
        return _no_problem
    from .cuda.machine import Machine
    from .cuda.verify import one_kernel

    machine = Machine.of(target)
    return lambda func: one_kernel(func, machine)


def _no_problem(func: tirx.PrimFunc) -> str | None:
    return None


def finish_for(target: Target) -> Callable[[tirx.PrimFunc], tirx.PrimFunc]:
    """What is done to every scheduled kernel of ``target``'s kind before it is compiled.

    On CPUs calls of exp, erf and the like become polynomials that LLVM can vectorise; a CUDA
    kernel stays as it is.
    """
    if target.kind.name == "llvm":
        from .llvm.vector_math import vectorize_math

        return vectorize_math
    return _unchanged


def _unchanged(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return func
