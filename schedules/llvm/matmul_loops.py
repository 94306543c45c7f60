"""The loop nests of a matrix multiplication: register tiles, or a stream for few rows."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from .. import analysis
from ..analysis import static
from .edges import Edge, move_last_tiles_inwards, separate_interior
from .machine import Machine
from .matmul_nest import Nest
from .microkernel import Problem, Tile, row_blocks, transpose_inner, vectorize_inner

#: Up to this many rows the right operand is streamed instead of tiled.
_STREAMED_ROWS = 4


@dataclass(frozen=True)
class Loops:
    """The loops of the tiled nest.

    ``parallel`` fuses the outer loops, ``row_blocks`` blocks of rows and ``column_tiles`` tiles of
    columns, and ``row_tiles`` tiles of rows where their count is symbolic; elsewhere ``row_tile``
    runs over them.  One iteration of ``place``, at ``depth`` loops, finishes a tile.  ``panel``
    produces the right operand for one tile of columns.
    """

    parallel: LoopRV
    row_tile: LoopRV | None
    reduction: LoopRV
    row_blocks: int
    column_tiles: ir.Expr
    row_tiles: ir.Expr | None
    panel: SBlockRV | None = None

    @property
    def place(self) -> LoopRV:
        """Where a block that works on finished tiles is attached."""
        return self.parallel if self.row_tile is None else self.row_tile

    @property
    def depth(self) -> int:
        """How many loops enclose a tile."""
        return 1 if self.row_tile is None else 2


def tile_loops(schedule: s_tir.Schedule, nest: Nest, tile: Tile, machine: Machine) -> Loops:
    """Split the anchor's loops: tasks, tiles of rows, the reduction, then the register tile."""
    row_tile, row_inner = schedule.split(nest.row, [None, tile.rows])
    shared = list(nest.outer)
    blocks = row_blocks(nest.problem, tile, machine)
    if blocks > 1:
        row_block, row_tile = schedule.split(row_tile, [blocks, None])
        shared.append(row_block)
    column_tile, vector, lane = schedule.split(nest.column, [None, tile.vectors, tile.lanes])
    shared.append(column_tile)
    schedule.reorder(*shared, row_tile, *nest.reduction, row_inner, vector, lane)
    schedule.unroll(row_inner)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    column_tiles = schedule.get(column_tile).extent
    row_tiles = schedule.get(row_tile).extent
    if nest.problem.rows is None:
        fused = schedule.fuse(*shared, row_tile)
    else:
        fused = schedule.fuse(*shared) if len(shared) > 1 else column_tile
    if nest.problem.work is None or nest.problem.work >= machine.grain:
        schedule.parallel(fused)
    inner_rows = None if nest.problem.rows is None else row_tile
    panel = nest.operands.panel
    if panel is None and _rows_alias(nest.problem, tile, blocks):
        panel = schedule.cache_read(nest.anchor.handle, _right_read(schedule, nest), "global")
    return Loops(fused, inner_rows, nest.reduction[0], blocks, column_tiles, row_tiles, panel)


def _rows_alias(problem: Problem, tile: Tile, blocks: int) -> bool:
    """Whether the right operand's rows fall on the same few cache sets, so that packing pays.

    That happens where the distance of two rows is a multiple of a page; a packed panel costs one
    copy per block of rows and is read once per tile of rows.
    """
    if problem.rows is None or problem.columns is None or problem.reduction is None:
        return False
    tiles = problem.rows // (tile.rows * blocks)
    return tiles >= 4 and problem.reduction >= 256 and problem.columns * 4 % 4096 == 0


def _right_read(schedule: s_tir.Schedule, nest: Nest) -> int:
    """Which of the anchor's reads is the right operand: the one that the columns index."""
    block = schedule.get(nest.anchor.handle)
    column = block.iter_vars[nest.column_position].var
    for number, region in enumerate(block.reads):
        used = [v for part in region.region for v in analysis.variables_of(part.min)]
        if any(column.same_as(variable) for variable in used):
            return number
    raise ValueError("no read of the anchor uses its columns")


def stream_tile(problem: Problem, machine: Machine, lanes: int) -> Tile | None:
    """The tile of ``stream_loops``, or ``None`` where the rows are many or the columns few."""
    if problem.rows is None or problem.columns is None or problem.reduction is None:
        return None
    if problem.rows > _STREAMED_ROWS or problem.columns < lanes or problem.reduction % 4:
        return None
    # The sums of one task take half of the L1 cache.
    most = machine.l1_bytes // 2 // (4 * problem.rows)
    wanted = machine.cores if problem.work is None or problem.work >= machine.grain else 1
    tasks = max(-(-problem.columns // most), -(-wanted // (problem.batch or 1)))
    vectors = min(-(-problem.columns // (tasks * lanes)), problem.columns // lanes)
    return Tile(problem.rows, vectors, lanes)


def stream_loops(schedule: s_tir.Schedule, nest: Nest, tile: Tile, machine: Machine) -> Loops:
    """Loops for few rows, where reading the right operand is all the time there is.

    A task reads long contiguous pieces of a few rows of the right operand at a time, as the
    hardware prefetcher likes it, and adds them to sums that stay in the L1 cache.
    """
    *further, reduction = nest.reduction
    together = 8 if tile.rows == 1 and (nest.problem.reduction or 0) % 8 == 0 else 4
    steps, step = schedule.split(reduction, [None, together])
    column_tile, vector, lane = schedule.split(nest.column, [None, tile.vectors, tile.lanes])
    shared = [*nest.outer, column_tile]
    schedule.reorder(*shared, *further, steps, vector, step, nest.row, lane)
    schedule.unroll(step)
    schedule.unroll(nest.row)
    schedule.vectorize(lane)
    column_tiles = schedule.get(column_tile).extent
    fused = schedule.fuse(*shared) if len(shared) > 1 else column_tile
    if nest.problem.work is None or nest.problem.work >= machine.grain:
        schedule.parallel(fused)
    first = further[0] if further else steps
    return Loops(fused, None, first, 1, column_tiles, None)


def attach_epilogue(schedule: s_tir.Schedule, nest: Nest, tile: Tile, loops: Loops) -> bool:
    """Compute the epilogue on each finished tile; ``False`` if a block does not fit the tile.

    A block fits if its loops under the tile cover exactly the tile's elements.  TVM's region for
    a tile that straddles a reshaped dimension is too small or has a varying extent.
    """
    depth = loops.depth
    for block in nest.epilogue:
        try:
            schedule.reverse_compute_at(block, loops.place)
        except s_tir.ScheduleError:
            return False
        elements = 1
        for loop in schedule.get_loops(block)[depth:]:
            extent = static(schedule.get(loop).extent)
            if extent is None:
                return False
            elements *= extent
        if elements != tile.rows * tile.columns:
            return False
        vectorize_inner(schedule, block, depth, tile.lanes)
    return True


def finish_operands(
    schedule: s_tir.Schedule, nest: Nest, tile: Tile, loops: Loops, machine: Machine
) -> None:
    """Place the operand blocks that were not inlined, and separate the sums' initialisation."""
    if loops.panel is not None:
        schedule.compute_at(loops.panel, loops.parallel)
        if nest.operands.along_reduction:
            transpose_inner(schedule, loops.panel, 1, machine.lanes)
        else:
            vectorize_inner(schedule, loops.panel, 1, tile.lanes)
    schedule.decompose_reduction(nest.anchor.handle, loops.reduction)
    main = schedule.get(loops.parallel)
    for info in analysis.blocks(schedule):
        if not schedule.get(schedule.get_loops(info.handle)[0]).same_as(main):
            _loop_nest(schedule, info.handle, machine)


def _loop_nest(schedule: s_tir.Schedule, block: SBlockRV, machine: Machine) -> None:
    """A parallel, vectorised loop nest for an injective block on its own."""
    loops = schedule.get_loops(block)
    if schedule.get(loops[0]).kind == tirx.ForKind.PARALLEL:
        return
    if len(loops) > 1:
        schedule.parallel(schedule.fuse(*loops[:-1]))
    vectorize_inner(schedule, block, min(1, len(loops) - 1), machine.lanes)


def with_edges(schedule: s_tir.Schedule, nest: Nest, tile: Tile, loops: Loops) -> s_tir.Schedule:
    """Handle the extents that the tile does not divide."""
    problem = nest.problem
    parallel = schedule.get(loops.parallel)
    task: ir.Expr = parallel.loop_var
    inside: list[ir.Expr] = []
    edges: list[Edge] = []
    if problem.rows is None and loops.row_tiles is not None:
        inside.append(task % loops.row_tiles < nest.row_extent // tile.rows)
        task = task // loops.row_tiles
    tasks = _tasks(nest, loops)
    if problem.columns is None:
        inside.append(task % loops.column_tiles < nest.column_extent // tile.columns)
    elif problem.columns % tile.columns:
        column = task if tasks == static(loops.column_tiles) else task % loops.column_tiles
        edges.append(Edge(((column, tile.columns),), problem.columns - tile.columns))
    if problem.rows is not None and loops.row_tile is not None:
        tiles = static(loops.row_tiles) or 1
        if problem.rows != tile.rows * tiles * loops.row_blocks:
            parts: list[tuple[ir.Expr, int]] = []
            if tiles > 1:
                parts.append((schedule.get(loops.row_tile).loop_var, tile.rows))
            if loops.row_blocks > 1:
                group = loops.row_blocks * loops.column_tiles
                block = task if tasks == static(group) else task % group
                block = block if static(loops.column_tiles) == 1 else block // loops.column_tiles
                parts.append((block, tile.rows * tiles))
            edges.append(Edge(tuple(parts), problem.rows - tile.rows))
    main = schedule.mod["main"]
    if edges:
        main = move_last_tiles_inwards(main, edges)
    if inside:
        main = separate_interior(main, parallel.loop_var, tirx.all(*inside))
    return s_tir.Schedule(main) if edges or inside else schedule


def _tasks(nest: Nest, loops: Loops) -> int | None:
    """How many tasks there are, not counting a symbolic loop over row tiles."""
    columns = static(loops.column_tiles)
    if columns is None or nest.problem.batch is None:
        return None
    return nest.problem.batch * loops.row_blocks * columns
