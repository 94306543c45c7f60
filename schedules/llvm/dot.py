"""Few rows against a transposed right operand: dot products along contiguous memory.

Packing the operand would cost as much as the multiplication, so the vectors run along the
reduction: every output has one partial sum per lane, and the lanes are added at the end.
"""

from __future__ import annotations

from tvm import s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ..analysis import static
from .machine import Machine
from .matmul_loops import Loops
from .matmul_nest import Nest
from .microkernel import Problem, Tile

#: Up to this many rows dot products beat packing the transposed operand.
_MOST_ROWS = 8
#: Partial sums (vectors) of one tile; they stay in registers.
_PARTIAL_SUMS = 16


def dot_tile(problem: Problem, machine: Machine, lanes: int) -> Tile | None:
    """The tile of ``dot_loops``; ``None`` where the rows are many or the reduction is ragged."""
    if problem.rows is None or problem.columns is None or problem.reduction is None:
        return None
    if problem.rows > min(_MOST_ROWS, machine.vector_registers // 2):
        return None
    if problem.reduction % lanes or problem.reduction <= lanes:
        return None
    columns = min(max(1, _PARTIAL_SUMS // problem.rows), problem.columns, 8)
    return Tile(problem.rows, 1, 1 << (columns.bit_length() - 1))


def dot_loops(schedule: s_tir.Schedule, nest: Nest, tile: Tile, machine: Machine) -> Loops:
    """Partial sums over vectors of the reduction, and their total, for one tile of columns.

    Raises ``ScheduleError`` where the operand's producer cannot be inlined, and ``ValueError``
    for several reduction loops.
    """
    if len(nest.reduction) != 1:
        raise ValueError("a dot product has one reduction loop")
    if nest.operands.panel is not None:
        schedule.compute_inline(nest.operands.panel)
    anchor = nest.anchor.handle
    before = schedule.get_loops(anchor)
    column_at, row_at, total_at = (
        _index(schedule, before, loop) for loop in (nest.column, nest.row, nest.reduction[0])
    )
    _, lane = schedule.split(nest.reduction[0], [None, machine.lanes_of(nest.anchor.dtype)])
    partial = schedule.rfactor(lane, len(nest.anchor.writes[0].shape))
    # The totals keep the anchor's loops, with the lanes in the place of the reduction.
    loops = schedule.get_loops(anchor)
    column, row, total = loops[column_at], loops[row_at], loops[total_at]
    inner = (column_at, row_at, total_at)
    outer = [loop for position, loop in enumerate(loops) if position not in inner]
    column_tile, column_inner = schedule.split(column, [None, tile.columns])
    schedule.reorder(*outer, column_tile, row, column_inner, total)
    column_tiles = schedule.get(column_tile).extent
    fused = schedule.fuse(*outer, column_tile) if outer else column_tile
    if nest.problem.work is None or nest.problem.work >= machine.grain:
        schedule.parallel(fused)
    schedule.compute_at(partial, fused)
    _vectorize_partial(schedule, partial, tile)
    return Loops(fused, None, total, 1, column_tiles, None)


def _index(schedule: s_tir.Schedule, loops: list[LoopRV], wanted: LoopRV) -> int:
    node = schedule.get(wanted)
    return next(n for n, loop in enumerate(loops) if schedule.get(loop).same_as(node))


def _vectorize_partial(schedule: s_tir.Schedule, partial: SBlockRV, tile: Tile) -> None:
    """Order the partial sums' loops: steps, then rows and columns unrolled, then the lanes."""
    loops = schedule.get_loops(partial)[1:]
    # ``rfactor`` puts the lanes first and the reduction stays last.
    lane, *tiles, steps = loops
    schedule.reorder(steps, *tiles, lane)
    for loop in tiles:
        if (static(schedule.get(loop).extent) or 1) > 1:
            schedule.unroll(loop)
    schedule.vectorize(lane)
    schedule.decompose_reduction(partial, steps)
