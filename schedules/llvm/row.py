"""Softmax, norms and reductions on CPUs: one parallel loop over rows, everything else inside it.

A *row* is what one value of a reduction depends on.  Two layouts are known.  Where the reduced
axes are contiguous in memory, each reduction keeps several vectors of partial results, which are
folded to one value at the end of the row.  Where they are not, neighbouring results are
contiguous, and a vector of them is reduced at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV
from tvm.target import Target

from ..analysis import BlockInfo, blocks, consumers, loads_of, static, variables_of
from ..base import ScheduleRule
from .injective import schedule_elementwise
from .machine import Machine, machine_of
from .nest import (
    block_reason,
    inline_intermediates,
    long_iterators,
    parallelize,
    reads_identically,
    separate_outputs,
    simplified,
    structure_reason,
    vectorize_inner,
)
from .reduce import schedule_columns, schedule_partials, spread_reduction
from .work import store_of, worth_parallel

#: Vectors of elementwise work in flight.
_ELEMENT_VECTORS = 2
#: Longest row, in elements, that is kept on a thread's stack; elsewhere TVM asks its allocator
#: for it again in every iteration of a parallel loop.
_STACK_ELEMENTS = 8192


@dataclass(frozen=True)
class Segment:
    """Consecutive blocks that one loop over ``rows`` can hold; ``rows`` are its extents.

    ``contiguous`` says whether the reduced axes are contiguous in memory; ``function`` has all
    blocks of the function.
    """

    rows: tuple[ir.Expr, ...]
    contiguous: bool
    function: Sequence[BlockInfo]
    infos: list[BlockInfo] = field(default_factory=list)


class RowRule(ScheduleRule):
    """Reductions over axes of one operand, with whatever elementwise work surrounds them."""

    name = "llvm.row"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :meth:`ScheduleRule.check`."""
        if (reason := structure_reason(func)) is not None:
            return reason
        schedule = s_tir.Schedule(func)
        infos = blocks(schedule)
        for info in infos:
            if (reason := block_reason(schedule, infos, info)) is not None:
                return reason
        reductions = [info for info in infos if info.is_reduction]
        if not reductions:
            return "no block reduces"
        return next(filter(None, map(_reduction_reason, reductions)), None)

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        machine = machine_of(target)
        schedule = s_tir.Schedule(func)
        separate_outputs(schedule)
        inline_intermediates(schedule)
        for info in blocks(schedule):
            if info.is_reduction and not long_iterators(info, "S"):
                spread_reduction(schedule, info, machine)
        _add_row_loops(schedule)
        for segment in _segments(blocks(schedule)):
            if segment.rows or not worth_parallel(segment.infos, machine):
                _schedule_segment(schedule, segment, machine)
            else:
                _schedule_long_row(schedule, segment, machine)
        return schedule


def _reduction_reason(info: BlockInfo) -> str | None:
    """Why a reduction is not one of a row: a contraction, or a window that overlaps others."""
    if info.node.init is None:
        return f"reduction {info.name} has no initial value"
    iterators = info.iterators
    wanted = [iterators[position] for position in long_iterators(info)]
    for load in loads_of(store_of(info).value):
        indices = simplified(info, load.indices)
        used = [variable for index in indices for variable in variables_of(index)]
        if load.source.same_as(info.writes[0]) or not _includes(used, wanted):
            continue
        if all(_is_plain(index) for index in indices):
            return None
        return f"reduction {info.name} reads its operand through a computed index"
    return f"reduction {info.name} has no operand that all its iterators index: a contraction"


def _is_plain(index: ir.Expr) -> bool:
    return ir.is_prim_var(index) or static(index) is not None


def _includes(found: Sequence[ir.Var], wanted: Sequence[ir.Var]) -> bool:
    return all(any(item.same_as(variable) for variable in found) for item in wanted)


def _reads_contiguously(info: BlockInfo) -> bool:
    """Whether one of the reduced axes is contiguous in the reduction's main operand.

    The main operand is the first of those that most iterators index.
    """
    iterators = [info.iterators[position] for position in long_iterators(info)]
    reduced = [info.iterators[position] for position in long_iterators(info, "R")]
    most, contiguous = -1, True
    for load in loads_of(store_of(info).value):
        indices = simplified(info, load.indices)
        if load.source.same_as(info.writes[0]) or not indices:
            continue
        used = [variable for index in indices for variable in variables_of(index)]
        count = sum(_includes(used, [iterator]) for iterator in iterators)
        if count > most:
            last = variables_of(indices[-1])
            most, contiguous = count, any(_includes(last, [variable]) for variable in reduced)
    return contiguous or not long_iterators(info, "S")


def _segments(infos: Sequence[BlockInfo]) -> list[Segment]:
    """Cut the blocks into runs whose blocks share their rows and depend on each other row-wise."""
    segments: list[Segment] = []
    for position, info in enumerate(infos):
        if segments and _fits(segments[-1], info):
            segments[-1].infos.append(info)
            continue
        reduction = next((later for later in infos[position:] if later.is_reduction), None)
        opened = None
        if reduction is not None:
            rows = tuple(reduction.extents[item] for item in long_iterators(reduction, "S"))
            opened = Segment(rows, _reads_contiguously(reduction), infos)
            if not _fits(opened, info):
                opened = None
        if opened is None:
            spatial = [info.extents[item] for item in long_iterators(info, "S")]
            opened = Segment(tuple(spatial[:-1]), True, infos)
        opened.infos.append(info)
        segments.append(opened)
    return segments


def _fits(segment: Segment, info: BlockInfo) -> bool:
    """Whether ``info`` can run row by row after the segment's blocks."""
    spatial = [info.extents[position] for position in long_iterators(info, "S")]
    count = len(segment.rows)
    if len(spatial) < count or (info.is_reduction and len(spatial) != count):
        return False
    if not segment.contiguous and len(spatial) != count:
        return False
    if info.is_reduction and _reads_contiguously(info) != segment.contiguous:
        return False
    equal = all(
        tvm_ffi.structural_equal(mine, theirs)
        for mine, theirs in zip(segment.rows, spatial[:count], strict=True)
    )
    return equal and all(reads_identically(earlier, info, count) for earlier in segment.infos)


def _schedule_segment(schedule: s_tir.Schedule, segment: Segment, machine: Machine) -> None:
    """One loop over the rows; parallel where the work pays for it."""
    row_loops: list[LoopRV] = []
    for info in segment.infos:
        lanes = machine.lanes_of(info.dtype)
        rows, inner = _split_loops(schedule, segment, info)
        if not segment.contiguous:
            handles = schedule_columns(schedule, info, rows, inner, lanes)
        else:
            schedule.fuse(*rows)
            handles = [info.handle]
            if info.is_reduction:
                handles = schedule_partials(schedule, info.handle, inner, lanes)
            elif inner:
                _schedule_elements(schedule, segment, info, inner, lanes)
        row_loops.extend(schedule.get_loops(handle)[0] for handle in handles)
    row = schedule.merge(*row_loops) if len(row_loops) > 1 else row_loops[0]
    if static(schedule.get(row).extent) != 1 and worth_parallel(segment.infos, machine):
        parallelize(schedule, row)


def _schedule_long_row(schedule: s_tir.Schedule, segment: Segment, machine: Machine) -> None:
    """The only row: one nest after the other, so that elementwise work runs in parallel."""
    for info in segment.infos:
        if info.is_injective:
            schedule_elementwise(schedule, [info], machine)
        else:
            alone = Segment((), segment.contiguous, segment.function, [info])
            _schedule_segment(schedule, alone, machine)


def _add_row_loops(schedule: s_tir.Schedule) -> None:
    """Give blocks without rows, such as a sum of everything, a row loop of one iteration."""
    for info in blocks(schedule):
        loops = schedule.get_loops(info.handle)
        if not loops:
            schedule.add_unit_loop(info.handle)
        elif info.kinds.startswith("R"):
            schedule.add_unit_loop(loops[0])


def _split_loops(
    schedule: s_tir.Schedule, segment: Segment, info: BlockInfo
) -> tuple[list[LoopRV], list[LoopRV]]:
    """The block's loops over rows, and its other loops."""
    loops = list(schedule.get_loops(info.handle))
    positions = long_iterators(info, "S")[: len(segment.rows)]
    if info.is_reduction:
        count = len(loops) - info.kinds.count("R")
    elif positions:
        count = positions[-1] + 1
    else:
        count = 0
    if count == 0:
        return [schedule.add_unit_loop(loops[0])], loops
    return loops[:count], loops[count:]


def _schedule_elements(
    schedule: s_tir.Schedule,
    segment: Segment,
    info: BlockInfo,
    inner: list[LoopRV],
    lanes: int,
) -> None:
    """Vectorise elementwise work on a row; keep a short row that is read again on the stack."""
    loop = schedule.fuse(*inner)
    elements = static(schedule.get(loop).extent)
    if elements is not None and elements <= _STACK_ELEMENTS and _stays_inside(segment, info):
        schedule.set_scope(info.handle, 0, "local")
    vectorize_inner(schedule, loop, lanes, _ELEMENT_VECTORS)


def _stays_inside(segment: Segment, info: BlockInfo) -> bool:
    """Whether the value of ``info`` is only read by the same segment's later blocks."""
    readers = consumers(segment.function, info)
    return not info.is_output and all(
        any(reader is inside for inside in segment.infos) for reader in readers
    )
