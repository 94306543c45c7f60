"""Anything no other rule takes: block by block, whatever is legal."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from ..analysis import BlockInfo, blocks, loads_of, static, variables_of
from ..base import ScheduleRule
from .injective import schedule_elementwise
from .machine import Machine, machine_of
from .nest import (
    block_reason,
    divisor_extent,
    inline_intermediates,
    long_iterators,
    separate_outputs,
    simplified,
    structure_reason,
)
from .work import store_of, worth_parallel

#: Vectors of neighbouring results that a reduction computes at once.
_COLUMNS = 4


class GenericRule(ScheduleRule):
    """The last resort: on a CPU one PrimFunc is one launch, so it always applies.

    Elementwise blocks are inlined, or get a vectorised parallel nest; reductions run in parallel
    over their results, vectorised where neighbouring results are contiguous; blocks of any other
    structure (scans, sorts, calls), and functions with statements outside blocks, stay as they
    are.
    """

    name = "llvm.generic"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :meth:`ScheduleRule.check`: it never declines."""
        return None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        machine = machine_of(target)
        schedule = s_tir.Schedule(func)
        if structure_reason(func) is not None:
            return schedule
        separate_outputs(schedule)
        inline_intermediates(schedule)
        infos = blocks(schedule)
        for info in infos:
            if block_reason(schedule, infos, info) is not None:
                continue
            if info.is_injective:
                schedule_elementwise(schedule, [info], machine)
            elif info.is_reduction:
                _schedule_reduction(schedule, info, machine)
        return schedule


def _schedule_reduction(schedule: s_tir.Schedule, info: BlockInfo, machine: Machine) -> None:
    """Parallel over the results; a vector of contiguous results inside the reduction."""
    positions = long_iterators(info, "S")
    loops = list(schedule.get_loops(info.handle))
    spatial = [loops[position] for position in positions]
    reduced = [loops[position] for position, kind in enumerate(info.kinds) if kind == "R"]
    vector = None
    if positions and _has_contiguous_results(info, positions[-1]):
        extent = static(info.extents[positions[-1]])
        lanes = machine.lanes_of(info.dtype)
        width = None if extent is None else divisor_extent(extent, lanes, _COLUMNS)
        if width is not None:
            outer, vector = schedule.split(spatial[-1], factors=[None, width])
            spatial = [*spatial[:-1], outer]
    if vector is not None:
        schedule.reorder(*spatial, *reduced, vector)
        schedule.vectorize(vector)
    else:
        schedule.reorder(*spatial, *reduced)
    if spatial and worth_parallel([info], machine):
        schedule.parallel(schedule.fuse(*spatial))
    if info.node.init is not None:
        first = schedule.get_loops(info.handle)[-len(reduced) - (vector is not None)]
        schedule.decompose_reduction(info.handle, first)


def _has_contiguous_results(info: BlockInfo, position: int) -> bool:
    """Whether an iterator is the last axis of the result and of every operand that it indexes."""
    iterator = info.iterators[position]
    accesses = [store_of(info).indices, *(load.indices for load in loads_of(store_of(info).value))]
    for indices in accesses:
        found = simplified(info, indices)
        for axis, index in enumerate(found):
            used = any(variable.same_as(iterator) for variable in variables_of(index))
            if used and (axis != len(found) - 1 or not index.same_as(iterator)):
                return False
    return any(index.same_as(iterator) for index in simplified(info, store_of(info).indices)[-1:])
