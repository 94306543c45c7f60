"""What a matrix multiplication rule knows before it tiles: the anchor, its loops, the rest."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from .. import analysis
from ..analysis import BlockInfo, static
from .microkernel import Problem
from .operands import Operands, inline_maps


@dataclass(frozen=True)
class Nest:
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
    column_position: int


def find_nest(schedule: s_tir.Schedule) -> Nest:
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
    return Nest(
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
        column_position=form.columns[-1],
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
