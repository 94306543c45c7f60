"""The rule for convolutions: implicit GEMM with the padding, producers and epilogue in its kernel.

A convolution is a contraction whose left operand is read at sums of iterators.  Its window
offsets and input channels are the reduction; the fetch computes the address of each element of
the unrolled image, which therefore never exists in memory.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.target import Target

from .. import analysis
from ..analysis import BlockInfo
from ..base import ScheduleRule
from . import contraction as contractions
from .contraction import Contraction
from .machine import Machine
from .matmul import obstacle, schedule_contraction


class ConvRule(ScheduleRule):
    """One kernel of a convolution, its padding, its producers and its epilogue.

    Any layout, stride, dilation and number of groups; depthwise convolutions have their own rule.
    """

    name = "cuda.conv"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :class:`ScheduleRule`; nothing is mutated."""
        found = find(func)
        return found if isinstance(found, str) else obstacle(*found)

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :class:`ScheduleRule`."""
        found = find(func)
        if isinstance(found, str):
            raise ValueError(found)
        return schedule_contraction(*found, Machine.of(target))


def find(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, Contraction] | str:
    """The group's convolution, with its groups as a batch axis, or why there is none.

    The schedule that comes with it is of ``func``, or, for a grouped convolution, of a function
    whose channel iterator is split.
    """
    schedule = s_tir.Schedule(func)
    found = contractions.find(analysis.blocks(schedule))
    if isinstance(found, str):
        return found
    if found.is_matmul:
        return "both operands are indexed by plain iterators; this is a matmul"
    if _split_groups(schedule, found.block):
        # The primitive leaves (g * c + f) // c; only the simplified index no longer mentions f.
        schedule = s_tir.Schedule(s_tir.transform.StmtSimplify()(schedule.mod))
        found = contractions.find(analysis.blocks(schedule))
        if isinstance(found, str):
            return found
    batch, rows, columns = (found.extent(role) for role in "SIJ")
    if batch != 1 and 1 in (rows, columns):
        return "a depthwise convolution: each group has one channel"
    return schedule, found


def _split_groups(schedule: s_tir.Schedule, block: BlockInfo) -> bool:
    """Split the output channels ``f`` of a grouped convolution into (group, channel in it).

    Before: ``y[f] += x[f // c * r + k] * w[f, k]``.
    After: ``y[g * c + f] += x[g * r + k] * w[g * c + f, k]``.
    """
    for at, variable in enumerate(block.iterators):
        size = _group_size(block, variable)
        if size is not None:
            axes = [tirx.Var(f"x{n}", "int64") for n in range(len(block.iterators))]
            split = [axes[at] // size, axes[at] % size]
            # Iterators of one step go: simplifying would cut their tie to their loops.
            kept = [
                [axis] if analysis.static(extent) != 1 else []
                for axis, extent in zip(axes, block.extents, strict=True)
            ]
            kept[at] = split
            mapped = [axis for group in kept for axis in group]
            schedule.transform_block_layout(block.handle, tirx.IndexMap(axes, mapped, None))
            return True
    return False


def _group_size(block: BlockInfo, variable: ir.Var) -> int | None:
    """The ``c`` of an index that contains ``variable // c``, if ``c`` is more than 1."""
    divisions: list[tirx.FloorDiv] = []
    for load in analysis.loads_of(block.node.body.value):
        for index in load.indices:
            tvm_ffi.structural_walk(index, (tirx.FloorDiv, divisions.append))
    for division in divisions:
        if variable.same_as(division.a):
            return analysis.static(division.b)
    return None
