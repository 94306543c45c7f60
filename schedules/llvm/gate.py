"""Squeeze-and-excite gates on CPUs: a mean over pixels and two layers on one pixel, in one call.

The stages depend on each other in full, so they run one after the other.  Each vectorises over
channels, the contiguous axis, with its sums in registers; only the mean, which reads the whole
feature map, is spread over the cores, by channel tiles.
"""

from __future__ import annotations

import math

from tvm import s_tir, tirx
from tvm.target import Target

from ..analysis import BlockInfo, blocks, static
from ..base import ScheduleRule
from .machine import machine_of

TILE = 64  # channels whose sums stay in registers: four 512-bit or eight 256-bit vectors
MIN_STAGES = 3


class GateRule(ScheduleRule):
    """Three or more reductions, each over what the one before it made."""

    name = "llvm.gate"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :meth:`ScheduleRule.check`."""
        if not isinstance(func.body, s_tir.SBlockRealize):
            return "the function has no root block"
        reductions = [info for info in blocks(s_tir.Schedule(func)) if not info.is_injective]
        if len(reductions) < MIN_STAGES:
            return f"it has {len(reductions)} reductions; a gate has at least {MIN_STAGES}"
        for info in reductions:
            extents = [static(extent) for extent in info.extents]
            if not info.is_reduction or None in extents:
                return f"block {info.name} is no reduction of static extents"
            spatial = [e for e, kind in zip(extents, info.kinds, strict=True) if kind == "S"]
            if sum(e != 1 for e in spatial) > 1:
                return f"block {info.name} runs over more than one spatial axis"
        if len({_nest(info) for info in reductions}) == 1:
            return "its reductions all run over the same rows, which llvm.row keeps in the cache"
        return None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        machine = machine_of(target)
        sch = s_tir.Schedule(func)
        for info in blocks(sch):
            if info.is_injective and not info.is_output:
                sch.compute_inline(info.handle)
        for info in blocks(sch):
            _stage(sch, info, machine.grain)
        return sch


def _nest(info: BlockInfo) -> tuple[tuple[int | None, str], ...]:
    """The extents other than 1 and their kinds, spatial ones first."""
    axes = [(static(e), kind) for e, kind in zip(info.extents, info.kinds, strict=True)]
    return tuple(sorted((axis for axis in axes if axis[0] != 1), key=lambda axis: axis[1] == "R"))


def _stage(sch: s_tir.Schedule, info: BlockInfo, grain: int) -> None:
    """Vectorise one stage over channels, sums in registers; a long one over the cores as well."""
    loops = sch.get_loops(info.handle)
    spatial = [loop for loop, kind in zip(loops, info.kinds, strict=True) if kind == "S"]
    reduced = [loop for loop, kind in zip(loops, info.kinds, strict=True) if kind == "R"]
    extents = [int(sch.get(loop).extent) for loop in spatial]
    position = extents.index(max(extents))
    channels, extent = spatial.pop(position), max(extents)
    tiles, lanes = sch.split(channels, factors=[None, _tile(extent)])
    sch.reorder(*spatial, tiles, *reduced, lanes)
    outer = sch.fuse(*spatial, tiles)
    if not reduced:
        sch.vectorize(lanes)
        return
    work = extent * math.prod(int(sch.get(loop).extent) for loop in reduced)
    copy = sch.cache_write(info.handle, 0, "local")
    sch.reverse_compute_at(copy, outer)
    sch.vectorize(sch.get_loops(copy)[-1])
    sch.vectorize(lanes)
    if work >= 2 * grain and extent > _tile(extent):
        sch.parallel(outer)
    start = sch.decompose_reduction(info.handle, reduced[0])
    sch.vectorize(sch.get_loops(start)[-1])


def _tile(extent: int) -> int:
    """The largest divisor of ``extent`` of at most TILE; two tiles or more from 32 channels on."""
    limit = min(TILE, extent // 2 if extent >= 32 else extent)
    return max(divisor for divisor in range(1, limit + 1) if extent % divisor == 0)
