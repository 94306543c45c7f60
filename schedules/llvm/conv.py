"""Convolution on CPUs: implicit matrix multiplication from a channels-last image.

No column matrix is made (Georganas et al., "Anatomy of High-Performance Deep Learning
Convolutions on SIMD Architectures", SC'18): a tile of pixels times vectors of output channels is
accumulated in registers over every tap and input channel, and the epilogue is applied to it
before it is stored.  Padding, and whatever was fused before it, is computed once per task into a
buffer that fits in the second-level cache, so the inner loop has no predicate.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ..analysis import blocks
from ..base import ScheduleRule
from .conv_narrow import is_narrow, tile_narrow
from .conv_stages import (
    Stages,
    inline_stages,
    keep_local,
    parallel_stage,
    split_loop,
    tile_output,
    vectorise_last,
)
from .conv_structure import (
    PER_CHANNEL,
    Window,
    epilogue_reason,
    find_window,
    injective_reason,
)
from .conv_tile import ConvPlan, plan_convolution
from .machine import Machine, machine_of

#: Largest extents that tuning tries for a register tile.
_ROWS, _COLUMNS, _VECTORS = 4, 16, 6


class ConvRule(ScheduleRule):
    """Dense and grouped 2-D convolutions, NHWC activations and HWIO weights."""

    name = "llvm.conv"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :meth:`ScheduleRule.check`."""
        if not isinstance(func.body, s_tir.SBlockRealize):
            return "the function has no root block"
        infos = blocks(s_tir.Schedule(func))
        window = find_window(infos)
        if isinstance(window, str):
            return window
        if window.weight is None:
            return "the window reduction has no weight (pooling)"
        if window.channel_kind == PER_CHANNEL:
            return "the convolution is depthwise"
        return injective_reason(infos, window.anchor)

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`.  Raises ``ValueError`` if ``check`` would decline."""
        sch = s_tir.Schedule(func)
        infos = blocks(sch)
        window = find_window(infos)
        if isinstance(window, str):
            raise ValueError(window)
        machine = machine_of(target)
        moved = epilogue_reason(infos, window.anchor) is not None
        stages = inline_stages(sch, window.data)
        plan = plan_convolution(window, machine, stages.data is not None, whole_channels=moved)
        for stage in stages.first:
            parallel_stage(sch, stage, machine, plan.parallel)
        if is_narrow(window, machine) and not moved:
            tile_narrow(sch, stages, window, machine, plan.parallel)
        else:
            tile_convolution(sch, stages, window, plan, machine, moved, tunable)
        return sch


def tile_convolution(
    sch: s_tir.Schedule,
    stages: Stages,
    window: Window,
    plan: ConvPlan,
    machine: Machine,
    moved: bool,
    tunable: bool,
) -> None:
    """Tile the reduction as ``plan`` says and attach the stages around it.

    An epilogue that ``moved`` elements (depth to space, a transposition) cannot take them from
    registers: the tile is stored to a buffer of whole rows, which the epilogue reads from cache.
    """
    anchor = stages.anchor
    if moved:
        tiles, finals = (sch.cache_write(anchor, 0, "local"),), stages.outputs
    else:
        tiles, finals = keep_local(sch, stages), ()
    batch, row, column, channel, row_tap, column_tap, inner = sch.get_loops(anchor)
    groups = window.channels // window.group_channels
    blocks_per_row_task = window.height // (plan.row_tasks * plan.rows)
    row_task, row_outer, row_inner = split_loop(
        sch, row, [blocks_per_row_task, plan.rows], _ROWS, tunable
    )
    column_outer, column_inner = split_loop(sch, column, [plan.columns], _COLUMNS, tunable)
    group, vectors, lane = sch.split(channel, [groups, None, plan.lanes])
    channel_blocks = window.group_channels // (plan.channel_tasks * plan.vectors * plan.lanes)
    channel_task, channel_outer, vector = split_loop(
        sch, vectors, [channel_blocks, plan.vectors], _VECTORS, tunable and not moved
    )
    middle = (row_outer, channel_outer) if moved else (channel_outer, row_outer)
    sch.reorder(
        *(batch, row_task, group, channel_task),
        *(*middle, column_outer),
        *(row_tap, column_tap, inner),
        *(row_inner, column_inner, vector, lane),
    )
    task = sch.fuse(batch, row_task, group, channel_task)
    for tile in tiles:
        sch.reverse_compute_at(tile, column_outer, preserve_unit_loops=True)
    for final in finals:
        _attach_moved(sch, final, row_outer, machine, plan.parallel)
    if stages.data is not None:
        sch.compute_at(stages.data, task, preserve_unit_loops=True)
        vectorise_last(sch, stages.data, machine)
    if plan.parallel:
        sch.parallel(task)
    for loop in (row_inner, column_inner, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    for tile in tiles:
        tile_output(sch, tile, plan.lanes)
    sch.decompose_reduction(anchor, row_tap)


def _attach_moved(
    sch: s_tir.Schedule, final: SBlockRV, row: LoopRV, machine: Machine, parallel: bool
) -> None:
    """Run an epilogue that moves elements after each row; over the whole tensor if TVM cannot
    tell which elements come from a row.
    """
    try:
        sch.reverse_compute_at(final, row, preserve_unit_loops=True)
    except s_tir.ScheduleError:
        parallel_stage(sch, final, machine, parallel)
    else:
        vectorise_last(sch, final, machine, fuse=True)
