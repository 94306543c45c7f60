"""Adaptive pooling whose windows differ in size: the window loops sit inside a spatial block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, tirx

from ..analysis import BlockInfo, descendants, element_count, loads_of, producers, static
from .conv_stages import vectorise_last
from .conv_tile import vector_lanes
from .machine import Machine


@dataclass(frozen=True)
class RaggedPool:
    """A spatial block over (n, y, x, channel) that holds one reduction over its own window.

    ``elements`` counts those of the input, 0 if its shape is symbolic.
    """

    anchor: BlockInfo
    channels: int
    elements: int


def find_ragged_pool(infos: Sequence[BlockInfo]) -> RaggedPool | None:
    """The group's ragged pooling; ``None`` if it is not one block and injective blocks after it."""
    nested = [info for info in infos if info.store is None]
    if len(nested) != 1 or nested[0].kinds != "SSSS" or producers(infos, nested[0]):
        return None
    anchor = nested[0]
    after = descendants(infos, anchor)
    if len(after) != len(infos) - 1 or not all(
        info.is_injective and len(info.kinds) == 4 for info in after
    ):
        return None
    inner: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(anchor.node.body, (s_tir.SBlock, inner.append))
    if len(inner) != 1 or not isinstance(inner[0].body, tirx.BufferStore):
        return None
    store = inner[0].body
    channel = store.indices[-1]
    loads = [load for load in loads_of(store.value) if not load.source.same_as(store.buffer)]
    channels = static(anchor.extents[3])
    if (
        channels is None
        or not loads
        or any(not load.indices[-1].same_as(channel) for load in loads)
    ):
        return None
    return RaggedPool(anchor, channels, element_count(loads[0].source) or 0)


def tile_ragged(
    sch: s_tir.Schedule, pool: RaggedPool, infos: Sequence[BlockInfo], machine: Machine
) -> None:
    """Run the positions in parallel, vectors of channels through each window."""
    after = descendants(infos, pool.anchor)
    for info in after:
        if not info.is_output:
            sch.compute_inline(info.handle)
    batch, row, column, channel = sch.get_loops(pool.anchor.handle)
    _, lane = sch.split(channel, [None, vector_lanes(pool.channels, machine)])
    task = sch.fuse(batch, row, column)
    for info in after:
        if info.is_output:
            sch.reverse_compute_at(info.handle, task, preserve_unit_loops=True)
            vectorise_last(sch, info.handle, machine)
    if machine.cores > 1 and pool.elements >= machine.grain * machine.lanes // 2:
        sch.parallel(task)
    sch.vectorize(lane)
