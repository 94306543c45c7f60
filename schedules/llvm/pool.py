"""Pooling on CPUs: window pooling, and reductions over rows and columns with the channel kept.

Both keep vectors of channels in registers and apply the epilogue before they are stored.  A
window is scheduled like a depthwise convolution without weights.  A whole-image reduction reads
each element once, so what was fused before it is inlined.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx
from tvm.target import Target

from ..analysis import BlockInfo, blocks
from ..base import ScheduleRule
from .conv_stages import (
    Stages,
    inline_stages,
    keep_local,
    parallel_stage,
)
from .conv_structure import (
    ColumnReduction,
    Window,
    epilogue_reason,
    find_column_reduction,
    find_window,
)
from .conv_tile import divisors, vector_lanes
from .depthwise import tile_window
from .machine import Machine, machine_of
from .pool_ragged import find_ragged_pool, tile_ragged

#: Vectors of channels kept in registers by a whole-image reduction; more than the latency of an
#: addition, few enough to leave channels for the other cores.
_ACCUMULATORS = 8


class PoolRule(ScheduleRule):
    """Max, average and global pooling of channels-last images."""

    name = "llvm.pool"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :meth:`ScheduleRule.check`."""
        if not isinstance(func.body, s_tir.SBlockRealize):
            return "the function has no root block"
        infos = blocks(s_tir.Schedule(func))
        if find_ragged_pool(infos) is not None:
            return None
        found = _find(infos)
        return found if isinstance(found, str) else epilogue_reason(infos, found.anchor)

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`.  Raises ``ValueError`` if ``check`` would decline."""
        sch = s_tir.Schedule(func)
        infos = blocks(sch)
        machine = machine_of(target)
        ragged = find_ragged_pool(infos)
        if ragged is not None:
            tile_ragged(sch, ragged, infos, machine)
            return sch
        found = _find(infos)
        if isinstance(found, str):
            raise ValueError(found)
        stages = inline_stages(sch, found.data, reused=isinstance(found, Window))
        parallel = machine.cores > 1 and found.operations >= machine.grain * machine.lanes
        for stage in stages.first:
            parallel_stage(sch, stage, machine, parallel)
        if isinstance(found, Window):
            tile_window(sch, stages, found, machine, parallel, tunable)
        else:
            tile_columns(sch, stages, found, machine, parallel)
        return sch


def _find(infos: Sequence[BlockInfo]) -> Window | ColumnReduction | str:
    """The pooling of the group: a sliding window, else a whole-image reduction, else why not."""
    window = find_window(infos)
    if isinstance(window, Window):
        if window.weight is not None:
            return "the window reduction has a weight (convolution)"
        if window.height * window.width > 1:
            return window
    return find_column_reduction(infos)


def tile_columns(
    sch: s_tir.Schedule,
    stages: Stages,
    reduction: ColumnReduction,
    machine: Machine,
    parallel: bool,
) -> None:
    """Accumulate several vectors of channels while the reduced axes are walked in order."""
    anchor, outputs = stages.anchor, keep_local(sch, stages)
    loops = sch.get_loops(anchor)
    kept = reduction.anchor.kinds.count("S")
    lanes = vector_lanes(reduction.channels, machine)
    chunks = reduction.channels // lanes
    vectors = divisors(chunks, _ACCUMULATORS)[-1]
    if parallel and reduction.outer == 1 and chunks % machine.cores == 0:
        vectors = divisors(chunks // machine.cores, _ACCUMULATORS)[-1]
    channel, vector, lane = sch.split(loops[kept - 1], [None, vectors, lanes])
    sch.reorder(channel, *loops[kept:], vector, lane)
    task = sch.fuse(*loops[: kept - 1], channel)
    for output in outputs:
        sch.reverse_compute_at(output, task, preserve_unit_loops=True)
    if parallel:
        sch.parallel(task)
    sch.unroll(vector)
    sch.vectorize(lane)
    for output in outputs:
        vector_loop, lane_loop = sch.split(sch.get_loops(output)[-1], [None, lanes])
        sch.unroll(vector_loop)
        sch.vectorize(lane_loop)
    sch.decompose_reduction(anchor, loops[kept])
