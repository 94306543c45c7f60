"""Anything no other rule takes: block by block, whatever is legal."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from ..base import ScheduleRule
from .injective import inline_intermediates, schedule_nest


class GenericRule(ScheduleRule):
    """Last resort: on a CPU one PrimFunc is one launch, so it always applies."""

    name = "llvm.generic"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :meth:`ScheduleRule.check`."""
        return None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        sch = s_tir.Schedule(func)
        if not isinstance(func.body, s_tir.SBlockRealize):
            return sch
        for block in inline_intermediates(sch):
            try:
                schedule_nest(sch, block)
            except s_tir.ScheduleError:
                continue
        return sch
