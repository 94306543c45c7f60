"""Elementwise groups on CPUs: chains inlined, one parallel loop, the contiguous axis vectorised."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from ..base import ScheduleRule

LANES = 16
GRAIN = 16384


def is_spatial(block: s_tir.SBlock) -> bool:
    """Whether every iterator of ``block`` is data parallel."""
    return all(iterator.iter_type == tirx.IterVar.DataPar for iterator in block.iter_vars)


def root_blocks(sch: s_tir.Schedule) -> list[s_tir.schedule.SBlockRV]:
    """The blocks directly under the root, in program order."""
    return sch.get_child_blocks(sch.get_sblock(sch.mod["main"].body.block.name_hint))


def inline_intermediates(sch: s_tir.Schedule) -> list[s_tir.schedule.SBlockRV]:
    """Inline every data-parallel block that writes no parameter; return the blocks left."""
    parameters = set(sch.mod["main"].params)
    left = []
    for block in root_blocks(sch):
        statement = sch.get(block)
        outputs = any(write.source in parameters for write in statement.writes)
        if outputs or not is_spatial(statement):
            left.append(block)
            continue
        try:
            sch.compute_inline(block)
        except s_tir.ScheduleError:
            left.append(block)
    return left


def schedule_nest(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> None:
    """Make ``block`` one parallel loop over its outer spatial axes; vectorise its last axis."""
    statement = sch.get(block)
    loops = sch.get_loops(block)
    if not loops or len(loops) != len(statement.iter_vars):
        return
    spatial = []
    for loop, iterator in zip(loops, statement.iter_vars, strict=True):
        if iterator.iter_type != tirx.IterVar.DataPar:
            break
        spatial.append(loop)
    if not spatial:
        return
    extents = [sch.get(loop).extent for loop in spatial]
    work = 1
    for extent in extents:
        work *= int(extent) if isinstance(extent, tirx.IntImm) else GRAIN
    inner = None
    if len(spatial) == len(loops):
        last = extents[-1]
        if isinstance(last, tirx.IntImm) and int(last) % LANES == 0:
            outer, inner = sch.split(spatial[-1], factors=[None, LANES])
            spatial[-1] = outer
    fused = sch.fuse(*spatial)
    if work >= 2 * GRAIN:
        sch.parallel(fused)
    if inner is not None:
        sch.vectorize(inner)


class InjectiveRule(ScheduleRule):
    """Groups whose every block is data parallel."""

    name = "llvm.injective"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :meth:`ScheduleRule.check`."""
        if not isinstance(func.body, s_tir.SBlockRealize):
            return "the function has no root block"
        sch = s_tir.Schedule(func)
        for block in root_blocks(sch):
            statement = sch.get(block)
            if not is_spatial(statement) or not isinstance(statement.body, tirx.BufferStore):
                return f"block {statement.name_hint} is not data parallel"
        return None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        sch = s_tir.Schedule(func)
        for block in inline_intermediates(sch):
            schedule_nest(sch, block)
        return sch
