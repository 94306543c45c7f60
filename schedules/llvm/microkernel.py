"""The register tile of a matrix multiplication, and the loops around it.

A tile of ``rows`` x ``vectors * lanes`` sums stays in vector registers for the whole reduction:
per step of ``k`` the kernel loads ``vectors`` vectors of the right operand, broadcasts ``rows``
scalars of the left one and issues ``rows * vectors`` fused multiply-adds (the outer-product kernel
of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008, without their
packing: on the measured machine unpacked row-major weights already reach the peak).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from ..analysis import static
from .machine import Machine

#: Cycles from issuing one fused multiply-add until its sum can be used again, in instructions.
_LATENCY = 8
#: Fixed cost of one tile outside its reduction loop, in instructions.
_TILE_OVERHEAD = 40
#: Up to this many rows are not cut for the cache: each cut reads the right operand once more.
_FEW_ROWS = 128
#: Extents assumed for symbolic dimensions.
_TYPICAL_ROWS, _TYPICAL_COLUMNS, _TYPICAL_REDUCTION = 64, 256, 256


@dataclass(frozen=True)
class Tile:
    """``rows`` x (``vectors`` x ``lanes``) sums kept in registers."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Columns of the tile."""
        return self.vectors * self.lanes


@dataclass(frozen=True)
class Problem:
    """Extents of one multiplication; ``None`` where symbolic.  ``batch`` counts outer loops."""

    batch: int | None
    rows: int | None
    columns: int | None
    reduction: int | None

    @property
    def work(self) -> int | None:
        """Multiplications and additions; ``None`` if an extent is symbolic."""
        extents = (self.batch, self.rows, self.columns, self.reduction)
        work = 2
        for extent in extents:
            if extent is None:
                return None
            work *= extent
        return work


def ranked_tiles(problem: Problem, machine: Machine, lanes: int) -> list[Tile]:
    """Tiles by the modelled time of the busiest core, the best height for each width.

    No tile is larger than the problem.  ``lanes`` is halved while it exceeds the columns.
    """
    rows = problem.rows or _TYPICAL_ROWS
    columns = problem.columns or _TYPICAL_COLUMNS
    reduction = problem.reduction or _TYPICAL_REDUCTION
    while lanes > columns:
        lanes //= 2
    # Rows a page apart fall on one set of the L1 cache, which keeps about eight of them.
    tallest = 8 if reduction * 4 % 4096 == 0 else 14
    ranked: list[tuple[float, Tile]] = []
    for vectors in range(1, machine.vector_registers - 4):
        if vectors * lanes > columns:
            break
        options: list[tuple[float, Tile]] = []
        for height in range(1, min(tallest, rows) + 1):
            if height * vectors + vectors + 1 > machine.vector_registers - 2 and height > 1:
                break
            # The right operand streams from L2 at about half the rate of the multipliers.
            step = max(height * vectors, height / 2 + 2.5 * vectors, _LATENCY)
            # One broken row of the right operand per step costs a cache line and a page more.
            per_tile = reduction * (step + 1) + _TILE_OVERHEAD + 4 * height * vectors
            row_tiles, column_tiles = -(-rows // height), -(-columns // (vectors * lanes))
            tasks = (problem.batch or 1) * column_tiles
            cost = per_tile * _shares(tasks, row_tiles, machine.cores)
            options.append((cost, Tile(height, vectors, lanes)))
        ranked.append(min(options, key=lambda option: option[0]))
    ranked.sort(key=lambda option: option[0])
    return [tile for _, tile in ranked]


def _shares(tasks: int, row_tiles: int, cores: int) -> int:
    """Tiles of the busiest core; rows are shared out too where columns alone do not suffice."""
    if tasks >= 4 * cores:
        return -(-tasks // cores) * row_tiles
    return -(-tasks * row_tiles // cores)


def row_blocks(problem: Problem, tile: Tile, machine: Machine) -> int:
    """Into how many blocks the row tiles are cut: enough tasks for the cores, and an L2 fit.

    A block's rows of the left operand stay in the L2 cache while the tiles of columns pass by.
    Counts that leave the last block ragged by more than a few tiles are passed over.
    """
    if problem.rows is None:
        return 1
    tiles = -(-problem.rows // tile.rows)
    columns = problem.columns or _TYPICAL_COLUMNS
    tasks = (problem.batch or 1) * -(-columns // tile.columns)
    reduction = problem.reduction or _TYPICAL_REDUCTION
    for count in range(1, tiles + 1):
        per_block = -(-tiles // count)
        wasted = per_block * count - tiles
        total = tasks * count
        balanced = total >= 4 * machine.cores or total % machine.cores == 0
        rows = per_block * tile.rows
        fits = rows * reduction * 4 <= machine.l2_bytes // 2 or rows <= _FEW_ROWS
        if balanced and fits and wasted * 32 <= tiles:
            return count
    return tiles


def vectorize_inner(schedule: s_tir.Schedule, block: SBlockRV, depth: int, lanes: int) -> None:
    """Vectorise the innermost loop of ``block`` below its outer ``depth`` loops.

    Takes the largest power of two up to ``lanes`` that divides the extent; a loop without one,
    or with a symbolic extent, stays as it is.
    """
    loops = schedule.get_loops(block)[depth:]
    while loops and static(schedule.get(loops[-1]).extent) == 1:
        loops = loops[:-1]
    if not loops:
        return
    extent = static(schedule.get(loops[-1]).extent)
    if extent is None:
        return
    while lanes > 1 and extent % lanes:
        lanes //= 2
    if lanes > 1:
        _, inner = schedule.split(loops[-1], [None, lanes])
        schedule.vectorize(inner)


def transpose_inner(schedule: s_tir.Schedule, block: SBlockRV, depth: int, lanes: int) -> None:
    """Vectorise a transposing copy so that each source line is used up while it is in the cache.

    Its two innermost loops ``(a, b)``, of which ``a`` is contiguous in the source, become
    ``(a outer, b outer, a inner, b lanes)``.
    """
    loops = schedule.get_loops(block)[depth:]
    extents = [static(schedule.get(loop).extent) for loop in loops[-2:]]
    if len(loops) < 2 or any(extent is None or extent % lanes for extent in extents):
        vectorize_inner(schedule, block, depth, lanes)
        return
    outer, inner = schedule.split(loops[-2], [None, lanes])
    vectors, lane = schedule.split(loops[-1], [None, lanes])
    schedule.reorder(outer, vectors, inner, lane)
    schedule.unroll(inner)
    schedule.vectorize(lane)
