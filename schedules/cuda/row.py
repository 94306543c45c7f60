"""Norms, softmax and reductions on CUDA: a thread block (or a warp) takes a row from the inputs
to every output.

The reductions are cross-thread: each lane reduces its share, then the lanes are combined with warp
shuffles (TVM's allreduce).  Row intermediates that are dear to recompute stay in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV
from tvm.target import Target

from .. import analysis
from ..analysis import BlockInfo
from ..base import ScheduleRule
from . import access, accumulate, nest, row_space
from .machine import Machine
from .row_space import RowSpace

COLUMNS = 32
"""Rows per thread block where neighbouring rows, not a row's elements, are contiguous."""


@dataclass(frozen=True)
class RowPlan:
    """The decided kernel shape: ``rows`` rows per thread block with ``lanes`` threads each.

    With ``columns`` the rows run along threadIdx.x, because neighbouring rows are neighbours in
    memory; otherwise the lanes do.
    """

    space: RowSpace
    rows: int
    lanes: int
    columns: bool


class RowRule(ScheduleRule):
    """Groups of reductions and spatial blocks over common rows."""

    name = "cuda.row"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """Decline where there is no reduction, or no row that every dependent block shares."""
        reason = nest.plain_blocks(func)
        if reason is not None:
            return reason
        infos = analysis.blocks(nest.fresh_schedule(func))
        if not analysis.anchors(infos):
            return "the group has no reduction"
        for block in analysis.anchors(infos):
            if not is_commutative(block):
                return f"block {block.name} is no sum, product, minimum or maximum"
        sch = prepared(func, Machine.of(target))
        infos = analysis.blocks(sch)
        space = row_space.find(infos)
        if isinstance(space, str):
            return space
        if not space.extents and any(_work(block) is None for block in infos):
            return "the group is one row of symbolic length"
        return None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        machine = Machine.of(target)
        sch = prepared(func, machine)
        infos = analysis.blocks(sch)
        space = row_space.find(infos)
        if isinstance(space, str):
            raise ValueError(space)
        build(sch, infos, plan(infos, space, machine))
        return sch


def is_commutative(block: BlockInfo) -> bool:
    """Whether a reduction's update is ``acc op x`` with op one of +, *, min and max."""
    store = block.store
    if store is None or not isinstance(store.value, (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)):
        return False
    return isinstance(store.value.a, ir.TensorLoad) and store.value.a.source.same_as(store.buffer)


def prepared(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule:
    """The group with detached outputs, and only those intermediates left that are kept."""
    sch = nest.fresh_schedule(func)
    nest.detach_outputs(sch)
    sch = accumulate.widened(sch)
    for name in [block.name for block in analysis.blocks(sch)]:
        infos = analysis.blocks(sch)
        block = next(info for info in infos if info.name == name)
        if block.is_output or not block.is_injective or is_kept(infos, block):
            continue
        try:
            sch.compute_inline(sch.get_sblock(name))
        except s_tir.ScheduleError:
            continue  # the block stays and is computed within its row
    return nest.simplified(sch)


def is_kept(infos: Sequence[BlockInfo], block: BlockInfo) -> bool:
    """Whether a spatial intermediate is worth keeping: dear, used by several, and along a row.

    It lies along a row if a reduction runs over it; anything else is a value per row, which is
    recomputed.  Kept rows live in shared memory, so their length must be static.
    """
    users = analysis.consumers(infos, block)
    if len(users) < 2 or block.store is None:
        return False
    loads = analysis.loads_of(block.store.value)
    if not analysis.calls_of(block.store.value) and len(loads) < 2:
        return False
    for user in users:
        reduced = [
            iterator
            for iterator, kind in zip(user.iterators, user.kinds, strict=True)
            if kind == "R"
        ]
        for load in analysis.loads_of(user.node.body):
            if not load.source.same_as(block.writes[0]):
                continue
            for index, size in zip(load.indices, block.writes[0].shape, strict=True):
                used = analysis.variables_of(index)
                if any(variable.same_as(one) for variable in used for one in reduced):
                    return analysis.static(size) is not None
    return False


def _work(block: BlockInfo) -> int | None:
    size = nest.product(list(block.extents))
    return size if isinstance(size, int) else None


def plan(infos: Sequence[BlockInfo], space: RowSpace, machine: Machine) -> RowPlan:
    """Decide lanes and rows per thread block from the length and the number of the rows."""
    length = 1
    for block, positions in zip(infos, space.positions, strict=True):
        if positions is not None:
            size = nest.product(_others(block, positions))
            length = max(length, size if isinstance(size, int) else 1024)
    columns = reads_columns(infos, space)
    count = nest.product(list(space.extents))
    if columns:
        rows = COLUMNS
        lanes = min(_power_of_two(max(1, length // 8)), 16)
        return RowPlan(space, rows, lanes, columns=True)
    lanes = machine.warp
    while lanes < 1024 and lanes * 8 < length:
        lanes *= 2
    if isinstance(count, int):
        idle = machine.multiprocessors * 128
        while lanes < 1024 and lanes * 4 <= length and count * lanes < idle:
            lanes *= 2
    rows = max(1, 128 // lanes)
    if isinstance(count, int):
        while rows > 1 and (count % rows or count // rows < machine.multiprocessors):
            rows //= 2
    return RowPlan(space, rows, lanes, columns=False)


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()


def _others(block: BlockInfo, positions: tuple[int, ...]) -> list[ir.Expr]:
    return [extent for number, extent in enumerate(block.extents) if number not in positions]


def reads_columns(infos: Sequence[BlockInfo], space: RowSpace) -> bool:
    """Whether neighbouring rows, rather than a row's elements, are contiguous in the inputs.

    Judged on the loads of full size in reductions: the last index is the last row iterator.
    """
    columns = lanes = 0
    for block, positions in zip(infos, space.positions, strict=True):
        if not positions or not block.is_reduction or block.store is None:
            continue
        analyzer = access.bound_analyzer(block)
        for load in analysis.loads_of(block.store.value):
            if load.source.same_as(block.store.buffer) or not load.indices:
                continue
            used = analysis.variables_of(analyzer.simplify(load.indices[-1]))
            if any(variable.same_as(block.iterators[positions[-1]]) for variable in used):
                columns += 1
            elif used:
                lanes += 1
    return columns > lanes


def build(sch: s_tir.Schedule, infos: Sequence[BlockInfo], row_plan: RowPlan) -> None:
    """Make one nest: rows over thread blocks, and every block's share of a row over the lanes."""
    count = nest.product(list(row_plan.space.extents))
    grids: list[LoopRV] = []
    members: list[LoopRV] = []
    inner: list[list[LoopRV]] = []
    for block, positions in zip(infos, row_plan.space.positions, strict=True):
        handle = sch.get_sblock(block.name)
        loops = sch.get_loops(handle)
        if positions is None:
            row, rest = sch.split(nest.fused(sch, handle, loops), factors=[count, None])
            left = [rest]
        else:
            rows = [loops[position] for position in positions]
            left = [loop for number, loop in enumerate(loops) if number not in positions]
            if rows:
                sch.reorder(*rows, *left)
            row = nest.fused(sch, left[0] if left else handle, rows)
        grid, member = sch.split(row, factors=[None, row_plan.rows])
        grids.append(grid)
        members.append(member)
        inner.append(left)
    grid = nest.merged(sch, grids)
    member = nest.merged(sch, members)
    sch.bind(grid, "blockIdx.x")
    sch.bind(member, "threadIdx.x" if row_plan.columns else "threadIdx.y")
    for block, positions in zip(infos, row_plan.space.positions, strict=True):
        if not block.is_output:
            if positions is not None and len(positions) > 1:
                _flatten_rows(sch, block, positions)
            scope = "local" if _is_row_scalar(block, row_plan, infos) else "shared"
            sch.set_scope(sch.get_sblock(block.name), 0, scope)
    for block, left in zip(infos, inner, strict=True):
        _distribute(sch, block, left, row_plan)


def _flatten_rows(sch: s_tir.Schedule, block: BlockInfo, positions: tuple[int, ...]) -> None:
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


def _is_row_scalar(block: BlockInfo, row_plan: RowPlan, infos: Sequence[BlockInfo]) -> bool:
    number = next(n for n, info in enumerate(infos) if info is block)
    positions = row_plan.space.positions[number]
    if positions is None or not block.is_reduction:
        return False
    free = [
        extent
        for n, (kind, extent) in enumerate(zip(block.kinds, block.extents, strict=True))
        if kind == "S" and n not in positions
    ]
    return nest.product(free) == 1


def _distribute(
    sch: s_tir.Schedule, block: BlockInfo, left: list[LoopRV], row_plan: RowPlan
) -> None:
    """Share the loops inside a row out to the lanes.

    A reduction to one value per row is split over the lanes; one to a vector keeps its reduction
    in the thread and shares the vector out, as any spatial block.
    """
    handle = sch.get_sblock(block.name)
    axis = "threadIdx.y" if row_plan.columns else "threadIdx.x"
    spatial, reduced = [], []
    for loop in left:
        (reduced if _is_reduced(sch, handle, loop) else spatial).append(loop)
    extents = [sch.get(loop).extent for loop in spatial]
    across = bool(reduced) and nest.product(extents) == 1
    if across:
        lane_of = nest.fused(sch, handle, reduced)
    else:
        if reduced and spatial:
            sch.reorder(*spatial, *reduced)
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


def _realize_of(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV
) -> s_tir.SBlockRealize:
    body = sch.get(sch.get_loops(block)[-1]).body
    if not isinstance(body, s_tir.SBlockRealize):
        raise ValueError(f"block {sch.get(block).name_hint} is not alone in its innermost loop")
    return body
