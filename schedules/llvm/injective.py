"""Elementwise groups on CPUs: chains inlined, one parallel loop, the contiguous axis vectorised."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV
from tvm.target import Target

from ..analysis import BlockInfo, blocks, loads_of, static, variables_of
from ..base import ScheduleRule
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
)
from .work import is_expensive, worth_parallel

#: Vectors in flight: of cheap elements, and of elements with calls such as exp.
_VECTORS, _EXPENSIVE_VECTORS = 4, 2
#: Elements of a chunk of a contiguous loop that no vector divides.
_SHORTEST_CHUNK, _LONGEST_CHUNK = 1024, 16384


class InjectiveRule(ScheduleRule):
    """Groups whose every block is data parallel, of any number of outputs."""

    name = "llvm.injective"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :meth:`ScheduleRule.check`."""
        if (reason := structure_reason(func)) is not None:
            return reason
        schedule = s_tir.Schedule(func)
        infos = blocks(schedule)
        if not infos:
            return "the function has no block"
        for info in infos:
            if (reason := block_reason(schedule, infos, info)) is not None:
                return reason
            if not info.is_injective:
                return f"block {info.name} is not data parallel"
        return None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        machine = machine_of(target)
        schedule = s_tir.Schedule(func)
        separate_outputs(schedule)
        inline_intermediates(schedule)
        for group in _groups(blocks(schedule)):
            schedule_elementwise(schedule, group, machine)
        return schedule


def _groups(infos: Sequence[BlockInfo]) -> list[list[BlockInfo]]:
    """Runs of blocks over one domain that depend on each other element by element only."""
    groups: list[list[BlockInfo]] = []
    for info in infos:
        if groups and all(_same_domain(earlier, info) for earlier in groups[-1]):
            groups[-1].append(info)
        else:
            groups.append([info])
    return groups


def _long_extents(info: BlockInfo) -> list[ir.Expr]:
    return [info.extents[position] for position in long_iterators(info)]


def _same_domain(earlier: BlockInfo, later: BlockInfo) -> bool:
    mine, theirs = _long_extents(earlier), _long_extents(later)
    if len(mine) != len(theirs):
        return False
    equal = all(tvm_ffi.structural_equal(a, b) for a, b in zip(mine, theirs, strict=True))
    return equal and reads_identically(earlier, later, len(mine))


def schedule_elementwise(
    schedule: s_tir.Schedule, infos: Sequence[BlockInfo], machine: Machine
) -> None:
    """One loop nest for data-parallel blocks over the same domain.

    Before, a nest for each block over ``[n, h, w, c]``.  After: ``for i in parallel: for v in
    vectorized``, where i runs over vectors of the flat domain if no operand is broadcast or
    moved; else over rows, with the contiguous axis inside.
    """
    lanes = min(
        machine.lanes_of(str(buffer.dtype))
        for info in infos
        for buffer in (*info.reads, *info.writes)
    )
    expensive = any(is_expensive(info.store.value) for info in infos if info.store is not None)
    vectors = _EXPENSIVE_VECTORS if expensive else _VECTORS
    nests = []
    flat = all(_is_flat(info) for info in infos)
    pieces = math.gcd(*(_uniform_extent(info) for info in infos))
    axes = map(_transposed_axis, infos)
    transposed = next((axis for axis in axes if axis is not None), None)
    for info in infos:
        loops = list(schedule.get_loops(info.handle))
        if not loops:
            return
        if flat:
            nests.append(_split_flat(schedule, loops, lanes, vectors))
        else:
            nests.append(_split_rows(schedule, info, loops, lanes, vectors, pieces, transposed))
    merged = [
        schedule.merge(*level) if len(level) > 1 else level[0] for level in zip(*nests, strict=True)
    ]
    if merged and worth_parallel(infos, machine):
        rows = static(schedule.get(merged[0]).extent)
        wide = rows is not None and rows < 4 * machine.cores
        parallelize(schedule, schedule.fuse(*merged) if wide else merged[0])


def _is_flat(info: BlockInfo) -> bool:
    """Whether every operand has the shape of the result, or is one value, read in order."""
    if info.store is None:
        return False
    target = _long_axes(info, info.writes[0], info.store.indices)
    for load in loads_of(info.store.value):
        indices = simplified(info, load.indices)
        if not any(variables_of(index) for index in indices):
            continue
        axes = _long_axes(info, load.source, load.indices)
        if len(axes) != len(target) or not all(
            index.same_as(other) and tvm_ffi.structural_equal(size, length)
            for (index, size), (other, length) in zip(axes, target, strict=True)
        ):
            return False
    return True


def _long_axes(
    info: BlockInfo, buffer: ir.Var, indices: Sequence[ir.Expr]
) -> list[tuple[ir.Expr, ir.Expr]]:
    """The index and the size of each axis that is longer than one."""
    pairs = zip(simplified(info, indices), buffer.shape, strict=True)
    return [(index, size) for index, size in pairs if static(size) != 1]


def _uniform_extent(info: BlockInfo) -> int:
    """The extent of the contiguous axis, or of the pieces of it that conditions cut out.

    A concatenation along the axis asks ``c < 24``, ``c < 48``...; in pieces of 24 the condition
    is the same for a whole piece.  0, the neutral element of gcd, for a symbolic extent.
    """
    positions = long_iterators(info)
    if not positions or info.store is None:
        return 0
    last = info.iterators[positions[-1]]
    cuts = [static(info.extents[positions[-1]]) or 0]

    def visit(comparison: ir.Expr) -> None:
        for side, other in ((comparison.a, comparison.b), (comparison.b, comparison.a)):
            bound = static(other)
            if bound and any(variable.same_as(last) for variable in variables_of(side)):
                cuts.append(bound)

    tvm_ffi.structural_walk(info.store.value, ((tirx.LT, tirx.LE, tirx.GT, tirx.GE), visit))
    return math.gcd(*cuts)


def _transposed_axis(info: BlockInfo) -> int | None:
    """The position, among the long iterators, of the one along which an operand is contiguous.

    ``None`` where operands are contiguous along the result's own last axis, or not at all.
    """
    positions = long_iterators(info)
    if len(positions) < 2 or info.store is None:
        return None
    *outer, last = positions
    for load in loads_of(info.store.value):
        indices = simplified(info, load.indices)
        used = [variable for index in indices for variable in variables_of(index)]
        if not indices or not any(variable.same_as(info.iterators[last]) for variable in used):
            continue
        for axis, position in enumerate(outer):
            if indices[-1].same_as(info.iterators[position]):
                return axis
    return None


def _split_flat(
    schedule: s_tir.Schedule, loops: list[LoopRV], lanes: int, vectors: int
) -> list[LoopRV]:
    """Split the flat domain into vectors, or into chunks that LLVM vectorises."""
    loop = schedule.fuse(*loops)
    extent = static(schedule.get(loop).extent)
    if extent is None:
        return [loop]
    for width in (count * lanes for count in range(vectors, 0, -1)):
        if extent % width == 0:
            outer, inner = schedule.split(loop, factors=[None, width])
            schedule.vectorize(inner)
            return [outer]
    chunk = next(
        (size for size in range(_LONGEST_CHUNK, _SHORTEST_CHUNK, -1) if extent % size == 0), extent
    )
    return list(schedule.split(loop, factors=[None, chunk]))


def _split_rows(
    schedule: s_tir.Schedule,
    info: BlockInfo,
    loops: list[LoopRV],
    lanes: int,
    vectors: int,
    pieces: int,
    transposed: int | None,
) -> list[LoopRV]:
    """Fuse the outer axes to rows; split the contiguous one into vectors where they divide it."""
    positions = long_iterators(info)
    if not positions:
        return [schedule.fuse(*loops)]
    inner = schedule.fuse(*loops[positions[-1] :])
    outer = loops[: positions[-1]]
    if transposed is not None:
        return _split_tiles(schedule, outer, inner, positions[transposed], lanes)
    levels = [schedule.fuse(*outer)] if outer else []
    extent = static(schedule.get(inner).extent)
    if extent is not None and pieces and pieces < extent:
        piece, inner = schedule.split(inner, factors=[None, pieces])
        levels, extent = [*levels, piece], pieces
    if extent is None:
        return [*levels, inner]
    widths = [count * lanes for count in range(vectors, 0, -1)]
    if extent <= widths[0] and extent % max(2, lanes // 2) == 0:
        widths = [extent]
    for width in widths:
        if extent % width == 0:
            chunk, vector = schedule.split(inner, factors=[None, width])
            schedule.vectorize(vector)
            return [*levels, chunk]
    return [*levels, inner]


def _split_tiles(
    schedule: s_tir.Schedule, outer: list[LoopRV], inner: LoopRV, axis: int, lanes: int
) -> list[LoopRV]:
    """Tiles of the axis that an operand is contiguous along and of the last one.

    Each cache line that a tile reads is then used whole while it is in cache.
    """
    other = outer[axis]
    sizes = [static(schedule.get(loop).extent) for loop in (other, inner)]
    other_size, inner_size = (
        1 if size is None else math.gcd(size, tile)
        for size, tile in zip(sizes, (2 * lanes, lanes), strict=True)
    )
    other_tile, other_inner = schedule.split(other, factors=[None, other_size])
    inner_tile, inner_inner = schedule.split(inner, factors=[None, inner_size])
    rest = [loop for position, loop in enumerate(outer) if position != axis]
    schedule.reorder(*rest, other_tile, inner_tile, other_inner, inner_inner)
    # LLVM's own vectoriser would use gather instructions, which are slower than single loads.
    if 2 * inner_size >= lanes:
        schedule.vectorize(inner_inner)
    else:
        schedule.unroll(inner_inner)
    return [schedule.fuse(*rest, other_tile, inner_tile), other_inner]
