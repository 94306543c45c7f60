"""Last resort on CUDA: still one kernel, if not a fast one.

Either one output per thread, with the reductions it needs computed in that thread; or, where
reductions depend on each other, the whole group in one thread block.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from .. import analysis
from ..base import ScheduleRule
from . import accumulate, nest, per_output, row
from .machine import Machine


class GenericRule(ScheduleRule):
    """Any group of plain blocks that fits one of the two simple kernel shapes."""

    name = "cuda.generic"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """Decline scans and other opaque blocks, and dependent reductions too large for a block."""
        alone = per_output.reason_against(func)
        if alone is None:
            return None
        made = _one_block(func, Machine.of(target))
        return f"{alone}, and {made}" if isinstance(made, str) else None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        machine = Machine.of(target)
        if per_output.reason_against(func) is None:
            return per_output.schedule(func, machine)
        made = _one_block(func, machine)
        if isinstance(made, str):
            raise ValueError(made)
        return made


def _one_block(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | str:
    reason = nest.plain_blocks(func)
    if reason is not None:
        return reason
    for block in analysis.anchors(analysis.blocks(nest.fresh_schedule(func))):
        if not accumulate.is_commutative(block):
            return f"block {block.name} is no sum, product, minimum or maximum"
    return row.attempt(func, machine, one_row=True)
