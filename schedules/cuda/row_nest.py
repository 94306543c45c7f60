"""The nest of a row kernel: all blocks over common rows, each row shared out to the lanes."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from .. import analysis
from ..analysis import BlockInfo
from . import nest
from .row_plan import RowPlan, is_shared_row
from .row_space import RowSpace


def build(sch: s_tir.Schedule, infos: Sequence[BlockInfo], row_plan: RowPlan, shared: str) -> None:
    """Make one nest: rows over thread blocks, and every block's share of a row over the lanes.

    ``shared`` is the storage scope of rows that are kept.
    """
    axis = "threadIdx.x" if row_plan.columns else "threadIdx.y"
    inner = merge_rows(sch, infos, row_plan.space, row_plan.rows, axis)
    for number, (block, positions) in enumerate(zip(infos, row_plan.space.positions, strict=True)):
        if not block.is_output:
            if positions is not None and len(positions) > 1:
                flatten_rows(sch, block, positions)
            scope = shared if is_shared_row(infos, row_plan.space, number) else "local"
            sch.set_scope(sch.get_sblock(block.name), 0, scope)
    for block, left in zip(infos, inner, strict=True):
        _distribute(sch, block, left, row_plan)


def merge_rows(
    sch: s_tir.Schedule, infos: Sequence[BlockInfo], space: RowSpace, rows: int, axis: str
) -> list[list[LoopRV]]:
    """One loop over all rows, split into thread blocks of ``rows`` rows along ``axis``, bound.

    Returns each block's loops inside a row.
    """
    count = nest.product(list(space.extents))
    grids: list[LoopRV] = []
    members: list[LoopRV] = []
    inner: list[list[LoopRV]] = []
    for block, positions in zip(infos, space.positions, strict=True):
        handle = sch.get_sblock(block.name)
        loops = sch.get_loops(handle)
        if positions is None:
            row, rest = sch.split(nest.fused(sch, handle, loops), factors=[count, None])
            left = [rest]
        else:
            outer = [loops[position] for position in positions]
            left = [loop for number, loop in enumerate(loops) if number not in positions]
            if outer:
                sch.reorder(*outer, *left)
            row = nest.fused(sch, left[0] if left else handle, outer)
        grid, member = sch.split(row, factors=[None, rows])
        grids.append(grid)
        members.append(member)
        inner.append(left)
    grid = nest.merged(sch, grids)
    member = nest.merged(sch, members)
    sch.bind(grid, "blockIdx.x")
    sch.bind(member, axis)
    return inner


def flatten_rows(sch: s_tir.Schedule, block: BlockInfo, positions: tuple[int, ...]) -> None:
    """Give an intermediate one row dimension, so that TVM can tell that it needs one row of it.

    Shapes: (rows_0, rows_1, ..., rest) -> (rows_0 * rows_1 * ..., rest).
    """
    store = block.store
    if store is None:
        raise ValueError(f"block {block.name} is not one store")
    dimensions = []
    for position in positions:
        iterator = block.iterators[position]
        dimensions.append(next(n for n, i in enumerate(store.indices) if i.same_as(iterator)))
    shape = store.buffer.shape

    def flat(*indices: ir.Expr) -> list[ir.Expr]:
        row: ir.Expr | int = 0
        for dimension in dimensions:
            row = row * shape[dimension] + indices[dimension]
        return [row] + [index for n, index in enumerate(indices) if n not in dimensions]

    sch.transform_layout(sch.get_sblock(block.name), ("write", 0), flat)


def _distribute(
    sch: s_tir.Schedule, block: BlockInfo, left: list[LoopRV], row_plan: RowPlan
) -> None:
    """Share the loops inside a row out to the lanes.

    A reduction to one value per row is split over the lanes; one to a vector keeps its reduction
    in the thread and shares the vector out, as any spatial block.
    """
    handle = sch.get_sblock(block.name)
    axis = "threadIdx.y" if row_plan.columns else "threadIdx.x"
    spatial: list[LoopRV] = []
    reduced: list[LoopRV] = []
    for loop in left:
        (reduced if _is_reduced(sch, handle, loop) else spatial).append(loop)
    extents = [sch.get(loop).extent for loop in spatial]
    across = bool(reduced) and nest.product(extents) == 1
    if reduced and spatial:
        sch.reorder(*spatial, *reduced)
    if across:
        lane_of = nest.fused(sch, handle, reduced)
    else:
        lane_of = nest.fused(sch, reduced[0] if reduced else handle, spatial)
    serial, lane = sch.split(lane_of, factors=[None, row_plan.lanes])
    sch.reorder(lane, serial)
    sch.bind(lane, axis)
    if reduced and not across:
        # The running value belongs in a register: in shared memory TVM would synchronise the
        # threads in every step of the reduction.
        result = sch.cache_write(handle, 0, "local")
        sch.reverse_compute_at(result, serial)


def _is_reduced(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, loop: LoopRV) -> bool:
    """Whether a loop feeds a reduction iterator of the block."""
    variable = sch.get(loop).loop_var
    realize = _realize_of(sch, block)
    for iterator, value in zip(sch.get(block).iter_vars, realize.iter_values, strict=True):
        if iterator.iter_type == tirx.IterVar.CommReduce and any(
            used.same_as(variable) for used in analysis.variables_of(value)
        ):
            return True
    return False


def _realize_of(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> s_tir.SBlockRealize:
    body = sch.get(sch.get_loops(block)[-1]).body
    if not isinstance(body, s_tir.SBlockRealize):
        raise ValueError(f"block {sch.get(block).name_hint} is not alone in its innermost loop")
    return body
