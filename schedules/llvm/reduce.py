"""The two ways in which a CPU reduces rows with vectors: along the row, or many rows at once."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ..analysis import BlockInfo, static
from .machine import Machine
from .nest import divisor_extent, split_vector, vector_extent
from .work import is_expensive, worth_parallel

#: Vectors of partial results of one reduction: enough to hide the latency of an addition.
_ACCUMULATORS = 8
#: Vectors of neighbouring results that are reduced at once.
_COLUMNS = 4


def spread_reduction(schedule: s_tir.Schedule, info: BlockInfo, machine: Machine) -> None:
    """Cut a long reduction to one value into rows of its own, which can run in parallel.

    Before: ``s += x[k]``.  After: ``p[i] += x[i, k]; s += p[i]`` for a few i for each core, if
    that many divide the elements.
    """
    if not worth_parallel([info], machine):
        return
    loops = schedule.get_loops(info.handle)
    loop = schedule.fuse(*loops)
    extent = static(schedule.get(loop).extent)
    lanes = machine.lanes_of(info.dtype)
    counts = [factor * machine.cores for factor in (4, 2, 1)]
    rows = next(
        (
            n
            for unit in (lanes, 1)
            for n in counts
            if extent is not None and not extent % (n * unit)
        ),
        None,
    )
    if rows is None or rows == 1:
        return
    outer, _ = schedule.split(loop, factors=[rows, None])
    schedule.rfactor(outer, factor_axis=len(info.writes[0].shape))


def schedule_columns(
    schedule: s_tir.Schedule,
    info: BlockInfo,
    rows: list[LoopRV],
    inner: list[LoopRV],
    lanes: int,
) -> list[SBlockRV]:
    """Reduce a vector of neighbouring results at once: move it inside the reduction.

    Where no vector divides the columns, all of them move inside, for LLVM to vectorise.
    """
    last = max(
        position for position, loop in enumerate(rows) if static(schedule.get(loop).extent) != 1
    )
    outer = rows[:last]
    columns = schedule.fuse(*rows[last:])
    extent = static(schedule.get(columns).extent)
    width = None if extent is None else divisor_extent(extent, lanes, _COLUMNS)
    if width is not None:
        chunk, columns = schedule.split(columns, factors=[None, width])
        outer = [*outer, chunk]
    if not outer:
        outer = [schedule.add_unit_loop(columns)]
    schedule.reorder(*outer, *inner, columns)
    schedule.fuse(*outer)
    if width is not None:
        schedule.vectorize(columns)
    if info.is_reduction:
        schedule.decompose_reduction(info.handle, schedule.get_loops(info.handle)[1])
    return [info.handle]


def schedule_partials(
    schedule: s_tir.Schedule, block: SBlockRV, inner: list[LoopRV], lanes: int
) -> list[SBlockRV]:
    """Split a reduction into vectors of partial results and the folds to one value, in order.

    Before: ``s[row] += x[row, k]``.  After, for 8 vectors of 16 lanes: ``a[row, 0:128] +=
    x[row, k0 + 0:128]``; ``b[row, 0:16] += a[...]``; ``c[row, 0:4] += b[...]``;
    ``s[row] += c[row, 0:4]``.  LLVM keeps all of it in registers.
    """
    reduced = schedule.fuse(*inner)
    extent = static(schedule.get(reduced).extent)
    store = schedule.get(block).body
    expensive = isinstance(store, tirx.BufferStore) and is_expensive(store.value)
    width: int | None = lanes
    if extent is not None:
        width = vector_extent(extent, lanes, _ACCUMULATORS, expensive)
    axis = len(schedule.get(block).writes[0].source.shape)
    pieces: list[SBlockRV] = []
    remaining = extent
    for narrower in (width, lanes, lanes // 2, lanes // 4) if width is not None else ():
        if narrower < 2 or (remaining is not None and remaining <= narrower):
            continue
        if pieces and (remaining is None or remaining % narrower):
            continue
        partial = split_vector(schedule, schedule.get_loops(block)[-1], narrower)
        if partial is None:
            continue
        piece = schedule.rfactor(partial, factor_axis=axis)
        folded, vector = schedule.get_loops(piece)[-2:]
        schedule.vectorize(vector)
        if pieces:
            schedule.unroll(folded)
        pieces.append(piece)
        remaining = narrower
    if remaining is not None and remaining <= lanes:
        schedule.unroll(schedule.get_loops(block)[-1])
    pieces.append(block)
    for piece in pieces:
        # The iterators after the spatial ones of the row: the folded axis, then the vector.
        position = -1 if piece is block else -2
        schedule.decompose_reduction(piece, schedule.get_loops(piece)[position])
    return pieces
