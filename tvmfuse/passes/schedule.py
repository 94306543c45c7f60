"""Give every PrimFunc of a lowered module its schedule: a record, else a rule, else dlight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..schedules import problems_for
from ..schedules.base import Declined, Scheduled, ScheduleRule, schedule_function
from .kernels import kernel_count


@dataclass(frozen=True)
class Choice:
    """Where the schedule of one function came from, and the launches it makes."""

    symbol: str
    source: str  # "record", "rule", "dlight" or "given" (scheduled by the user)
    name: str
    kernels: int


@dataclass(frozen=True)
class Refused:
    """A function that nothing made one kernel, with what every rule said."""

    symbol: str
    declined: tuple[Declined, ...]

    @property
    def text(self) -> str:
        """One line for the report."""
        return "; ".join(f"{item.rule}: {item.reason}" for item in self.declined)


@dataclass(frozen=True)
class ScheduledModule:
    """The module with its functions scheduled, and what was chosen for each."""

    mod: tvm.IRModule
    choices: tuple[Choice, ...]
    refused: tuple[Refused, ...]


Outcome = tuple[tirx.PrimFunc, Choice] | Refused
Known = dict[int, list[tuple[tirx.PrimFunc, Outcome]]]


def key_of(func: tirx.PrimFunc, must_be_one: bool) -> int:
    """Where in Known the outcomes of functions like ``func`` are."""
    return int(tvm_ffi.structural_hash(func)) ^ int(must_be_one)


def schedule(
    mod: tvm.IRModule,
    target: Target,
    rules: Sequence[ScheduleRule],
    groups: frozenset[str],
    database: ms.database.Database | None = None,
    known: Known | None = None,
) -> ScheduledModule:
    """Schedule every PrimFunc of ``mod``, which is left as it was.

    ``groups`` names the functions that must be one kernel; one that cannot is in ``refused``.
    Other functions (operators that fuse with nothing, sorts, scans) may take several launches.
    ``known`` carries outcomes between calls, so that replanning schedules only what is new.
    """
    known = {} if known is None else known
    updates: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    choices: list[Choice] = []
    refused: list[Refused] = []
    for symbol, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        must_be_one = symbol.name_hint in groups
        outcome = _outcome(func, target, tuple(rules), must_be_one, database, known)
        if isinstance(outcome, Refused):
            refused.append(Refused(symbol.name_hint, outcome.declined))
            continue
        scheduled, choice = outcome
        updates[symbol] = _with_attrs_of(scheduled, func)
        choices.append(Choice(symbol.name_hint, choice.source, choice.name, choice.kernels))
    result = mod.clone()
    for symbol, func in updates.items():
        result.update_func(result.get_global_var(symbol.name_hint), func)
    return ScheduledModule(result, tuple(choices), tuple(refused))


def _outcome(
    func: tirx.PrimFunc,
    target: Target,
    rules: tuple[ScheduleRule, ...],
    must_be_one: bool,
    database: ms.database.Database | None,
    known: Known,
) -> Outcome:
    seen = known.setdefault(key_of(func, must_be_one), [])
    for other, outcome in seen:
        if tvm_ffi.structural_equal(other, func):
            return outcome
    outcome = _decide(func, target, rules, must_be_one, database)
    seen.append((func, outcome))
    return outcome


def _decide(
    func: tirx.PrimFunc,
    target: Target,
    rules: tuple[ScheduleRule, ...],
    must_be_one: bool,
    database: ms.database.Database | None,
) -> Outcome:
    kind = target.kind.name
    if func.attrs and func.attrs.get("tirx.is_scheduled"):
        return func, Choice("", "given", "already scheduled", kernel_count(func, kind))
    if database is not None:
        found = database.query_schedule(tvm.IRModule({"main": func}), target, "main")
        if found is not None:
            tuned = found.mod["main"].with_attr("tirx.is_scheduled", True)
            return tuned, Choice("", "record", "tuning record", kernel_count(tuned, kind))
    with target:
        problem_of = problems_for(target) if must_be_one else None
        by_rule = schedule_function(func, target, rules, problem_of)
    if isinstance(by_rule, Scheduled):
        kernels = kernel_count(by_rule.func, kind)
        if kernels == 1 or not must_be_one:
            return by_rule.func, Choice("", "rule", by_rule.rule, kernels)
        by_rule = (Declined(by_rule.rule, f"it made {kernels} kernels of the group"),)
    fallback = without_rules(func, target, must_be_one)
    if isinstance(fallback, Refused):
        return Refused("", (*by_rule, *fallback.declined))
    return fallback


def without_rules(func: tirx.PrimFunc, target: Target, must_be_one: bool) -> Outcome:
    """The outcome of TVM's own default schedule."""
    scheduled = _dlight(func, target)
    if isinstance(scheduled, str):
        return Refused("", (Declined("dlight", scheduled),))
    kernels = kernel_count(scheduled, target.kind.name)
    if kernels != 1 and must_be_one:
        return Refused("", (Declined("dlight", f"its rules make {kernels} kernels"),))
    return scheduled, Choice("", "dlight", "dlight", kernels)


def _dlight(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | str:
    """TVM's own default schedule, or why there is none.  A raise is a decline (see docs)."""
    if target.kind.name != "cuda":
        return func.with_attr("tirx.is_scheduled", True)
    rules = (
        dlight.gpu.Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    try:
        with target:
            result = dlight.ApplyDefaultSchedule(*rules)(module)["main"]
    except (s_tir.ScheduleError, tvm.error.InternalError, ValueError, TypeError) as error:
        lines = str(error).strip().splitlines()
        return f"it raises: {lines[-1] if lines else type(error).__name__}"
    if kernel_count(result, "cuda") == 0:
        return "none of its rules binds the function to threads"
    return result


def _with_attrs_of(scheduled: tirx.PrimFunc, original: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep the function private and named as it was: scheduling renames it to ``main``."""
    attrs = dict(original.attrs.items()) if original.attrs else {}
    if "global_symbol" in attrs:
        return scheduled.with_attr("global_symbol", attrs["global_symbol"])
    has_symbol = scheduled.attrs and "global_symbol" in scheduled.attrs
    return scheduled.without_attr("global_symbol") if has_symbol else scheduled
