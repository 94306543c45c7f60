"""One kernel for a matrix multiplication with everything fused around it, on CPUs.

The multiplication is tiled for registers (see ``microkernel``).  Injective producers are inlined
into its operand reads, or computed before it where they are dear (see ``operands``); the epilogue
(bias, activation, residual, reshape) runs on the finished tile, vectorised, before the next tile
starts.  Ragged extents are handled by moving the last tile inwards (see ``edges``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from .. import analysis
from ..analysis import BlockInfo, static
from ..base import ScheduleRule
from .edges import Edge, move_last_tiles_inwards, separate_interior
from .indices import simplify_indices
from .machine import Machine, machine_of
from .microkernel import Problem, Tile, ranked_tiles, row_blocks, vectorize_inner
from .operands import Operands, inline_maps

_SUM_DTYPES = ("float32", "float64", "int32")


class MatMul(ScheduleRule):
    """Exactly one matrix multiplication, plus injective blocks before and after it."""

    name = "llvm.matmul"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See ``ScheduleRule.check``."""
        if target.kind.name != "llvm":
            return f"the target is {target.kind.name}, not llvm"
        infos = analysis.blocks(s_tir.Schedule(func))
        for info in infos:
            if info.store is None or "O" in info.kinds:
                return f"block {info.name} is neither a map nor a reduction of one statement"
        reductions = analysis.anchors(infos)
        if len(reductions) != 1:
            return f"the function has {len(reductions)} reductions; this rule takes one"
        form = analysis.contraction_of(reductions[0])
        if isinstance(form, str):
            return form
        if not form.columns:
            return f"{reductions[0].name} multiplies two vectors"
        if reductions[0].dtype not in _SUM_DTYPES:
            return f"{reductions[0].name} sums in {reductions[0].dtype}"
        return None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See ``ScheduleRule.schedule``; the choices are fixed, ``tunable`` or not."""
        machine = machine_of(target)
        simple = simplify_indices(func)
        schedule = s_tir.Schedule(simple)
        nest = _nest(schedule, machine)
        tiles = ranked_tiles(nest.problem, machine, machine.lanes_of(nest.anchor.dtype))
        for tile in tiles:
            attempt = schedule.copy()
            loops = _tile(attempt, nest, tile, machine)
            if _attach_epilogue(attempt, nest, tile, loops):
                break
        else:
            # The epilogue cuts the result across every tile: it gets a loop nest of its own.
            tile, attempt = tiles[0], schedule
            loops = _tile(attempt, nest, tile, machine)
        schedule = attempt
        _finish_operands(schedule, nest, tile, loops, machine)
        return _with_edges(schedule, nest, tile, loops)


@dataclass(frozen=True)
class _Nest:
    """The function before tiling: the anchor, its loops by role, and what stays around it."""

    anchor: BlockInfo
    operands: Operands
    epilogue: tuple[SBlockRV, ...]
    outer: tuple[LoopRV, ...]
    row: LoopRV
    column: LoopRV
    reduction: tuple[LoopRV, ...]
    row_extent: ir.Expr
    column_extent: ir.Expr
    problem: Problem


@dataclass(frozen=True)
class _Loops:
    """The loops of the tiled nest, from the outside in.

    ``parallel`` fuses the outer loops, ``row_blocks`` blocks of rows and ``column_tiles`` tiles of
    columns; ``row_tile`` runs over ``row_tiles`` tiles, and is part of ``parallel`` where the row
    count is symbolic.
    """

    parallel: LoopRV
    row_tile: LoopRV | None
    row_blocks: int
    column_tiles: ir.Expr
    row_tiles: ir.Expr


def _nest(schedule: s_tir.Schedule, machine: Machine) -> _Nest:
    """Inline what can be inlined and name the loops."""
    infos = analysis.blocks(schedule)
    anchor = analysis.anchors(infos)[0]
    form = analysis.contraction_of(anchor)
    if isinstance(form, str):
        raise ValueError(form)
    operands = inline_maps(schedule, anchor, form)
    infos = analysis.blocks(schedule)
    now = next(info for info in infos if info.name == anchor.name)
    epilogue = [info.handle for info in analysis.descendants(infos, now)]
    if anchor.is_output:
        epilogue.insert(0, schedule.cache_write(anchor.handle, 0, "global"))
    loops = schedule.get_loops(anchor.handle)
    if len(loops) != len(anchor.kinds):
        raise ValueError(f"{anchor.name} does not have one loop per iterator")
    rows = [loops[position] for position in form.rows]
    column = loops[form.columns[-1]]
    reduction = [loops[position] for position in form.reduction]
    row = _row_to_tile(schedule, rows) if rows else schedule.add_unit_loop(anchor.handle)
    inner = {form.columns[-1], *form.reduction}
    outer = [
        loop for position, loop in enumerate(loops) if position not in inner and loop is not row
    ]
    problem = Problem(
        batch=_product(schedule, outer),
        rows=static(schedule.get(row).extent),
        columns=static(schedule.get(column).extent),
        reduction=_product(schedule, reduction),
    )
    return _Nest(
        anchor=anchor,
        operands=operands,
        epilogue=tuple(epilogue),
        outer=tuple(outer),
        row=row,
        column=column,
        reduction=tuple(reduction),
        row_extent=schedule.get(row).extent,
        column_extent=schedule.get(column).extent,
        problem=problem,
    )


def _row_to_tile(schedule: s_tir.Schedule, rows: list[LoopRV]) -> LoopRV:
    """The row loop to tile for registers: the last one, or the longest if the last is short."""
    extents = [static(schedule.get(loop).extent) for loop in rows]
    if extents[-1] is None or extents[-1] >= 4:
        return rows[-1]
    return max(zip(extents, rows, strict=True), key=lambda pair: pair[0] or 1 << 30)[1]


def _product(schedule: s_tir.Schedule, loops: list[LoopRV]) -> int | None:
    product = 1
    for loop in loops:
        extent = static(schedule.get(loop).extent)
        if extent is None:
            return None
        product *= extent
    return product


def _tile(schedule: s_tir.Schedule, nest: _Nest, tile: Tile, machine: Machine) -> _Loops:
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
    return _Loops(fused, inner_rows, blocks, column_tiles, row_tiles)


def _attach_epilogue(schedule: s_tir.Schedule, nest: _Nest, tile: Tile, loops: _Loops) -> bool:
    """Compute the epilogue on each finished tile; ``False`` if a block does not fit the tile.

    A block fits if its loops under the tile cover exactly the tile's elements.  TVM's region for
    a tile that straddles a reshaped dimension is too small or has a varying extent.
    """
    place, depth = (loops.row_tile, 2) if loops.row_tile is not None else (loops.parallel, 1)
    for block in nest.epilogue:
        try:
            schedule.reverse_compute_at(block, place)
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


def _finish_operands(
    schedule: s_tir.Schedule, nest: _Nest, tile: Tile, loops: _Loops, machine: Machine
) -> None:
    """Place the operand blocks that were not inlined, and separate the sums' initialisation."""
    anchor, operands = nest.anchor.handle, nest.operands
    if operands.panel is not None:
        schedule.compute_at(operands.panel, loops.parallel)
        vectorize_inner(schedule, operands.panel, 1, tile.lanes)
    schedule.decompose_reduction(anchor, nest.reduction[0])
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


def _with_edges(schedule: s_tir.Schedule, nest: _Nest, tile: Tile, loops: _Loops) -> s_tir.Schedule:
    """Handle the extents that the tile does not divide."""
    problem = nest.problem
    parallel = schedule.get(loops.parallel)
    task: ir.Expr = parallel.loop_var
    inside: list[ir.Expr] = []
    edges: list[Edge] = []
    if loops.row_tile is None:
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


def _tasks(nest: _Nest, loops: _Loops) -> int | None:
    """How many tasks there are, not counting a symbolic loop over row tiles."""
    columns = static(loops.column_tiles)
    if columns is None or nest.problem.batch is None:
        return None
    return nest.problem.batch * loops.row_blocks * columns
