"""The interface of tvmfuse's schedule rules.

A rule is a dlight ``ScheduleRule``, so it also runs under TVM's plain ``ApplyDefaultSchedule``.
It adds two things that dlight lacks: a rule *decides before it mutates*, and when it does not
apply it says why in one sentence.  That answer is what makes the rules usable as the legality
oracle of the planner: a group exists only if some rule can make it one kernel.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule as DlightRule
from tvm.target import Target

# What schedule primitives, and rules that meet a shape they did not expect, may raise.
RAISED = (
    s_tir.ScheduleError,
    tvm.error.InternalError,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
)


@dataclass(frozen=True)
class Declined:
    """Why one rule cannot schedule one function."""

    rule: str
    reason: str


@dataclass(frozen=True)
class Scheduled:
    """A scheduled function and the rule that made it."""

    func: tirx.PrimFunc
    rule: str


class ScheduleRule(DlightRule):
    """One kernel shape on one kind of target.

    Subclasses give ``name`` and implement ``check`` (reads only) and ``schedule`` (mutates a
    schedule of its own).  ``schedule`` is called only after ``check`` returned ``None``.
    """

    name: str

    @abstractmethod
    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """Return ``None`` if the rule makes ``func`` one kernel, else the reason it does not."""

    @abstractmethod
    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """Return a schedule of ``func``; with ``tunable`` the choices are sampled, not fixed."""

    def apply(
        self, func: tirx.PrimFunc, target: Target, tunable: bool = False
    ) -> s_tir.Schedule | None:
        """The dlight entry point: a schedule, or ``None`` if the rule declines."""
        if self.check(func, target) is not None:
            return None
        return self.schedule(func, target, tunable)


def schedule_function(
    func: tirx.PrimFunc,
    target: Target,
    rules: tuple[ScheduleRule, ...],
    problem_of: Callable[[tirx.PrimFunc], str | None] | None = None,
) -> Scheduled | tuple[Declined, ...]:
    """Schedule ``func`` by the first rule that applies; else return every rule's reason.

    ``func`` is left as it was.  A rule whose check passes and whose schedule then fails counts
    as declined, with TVM's message as the reason: the planner may then split the group.
    ``problem_of`` looks at each result and says what is wrong with it; the next rule is then
    tried.
    """
    declined: list[Declined] = []
    for rule in rules:
        outcome = _try(rule, func, target)
        if isinstance(outcome, Scheduled):
            problem = None if problem_of is None else problem_of(outcome.func)
            if problem is None:
                return outcome
            outcome = problem
        declined.append(Declined(rule.name, outcome))
    return tuple(declined)


def _try(rule: ScheduleRule, func: tirx.PrimFunc, target: Target) -> Scheduled | str:
    try:
        reason = rule.check(func, target)
        if reason is not None:
            return reason
        schedule = rule.schedule(func, target, tunable=False)
    except RAISED as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        message = next((line for line in lines if line.startswith("Error message")), None)
        return f"the schedule failed: {message or (lines or [type(error).__name__])[-1]}"
    scheduled = schedule.mod["main"].with_attr("tirx.is_scheduled", True)
    return Scheduled(scheduled, rule.name)
