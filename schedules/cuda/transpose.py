"""Transposes through shared memory: both the loads and the stores of a warp are contiguous.

The method is the usual one (tiles of 32 x 32 with a padded row, so that neither direction meets a
bank conflict; M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA, 2013).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir

from .. import analysis
from ..analysis import BlockInfo
from . import access, nest

TILE = 32
TILE_ROWS = 8


@dataclass(frozen=True)
class Transpose:
    """A load whose contiguous axis is not the block's last iterator but the one at ``axis``.

    ``read`` is the load's position in the block's list of reads.
    """

    read: int
    axis: int


def find(block: BlockInfo) -> Transpose | None:
    """The one transposed load of a spatial block, if there is one worth a tile.

    Both axes must be static and at least one tile long, the buffer must be read at one place
    only, and never under a condition (a tile is loaded whole).
    """
    store = block.store
    if store is None or len(block.extents) < 2 or access.conditions_of(store.value):
        return None
    last = len(block.extents) - 1
    if not store.indices or not store.indices[-1].same_as(block.iterators[last]):
        return None
    analyzer = access.bound_analyzer(block)
    loads = analysis.loads_of(store.value)
    found = []
    for load in loads:
        if sum(other.source.same_as(load.source) for other in loads) > 1 or not load.indices:
            continue
        index = analyzer.simplify(load.indices[-1])
        axis = next((n for n, v in enumerate(block.iterators) if v.same_as(index)), last)
        strided = any(
            used.same_as(block.iterators[last])
            for other in load.indices[:-1]
            for used in analysis.variables_of(other)
        )
        if axis != last and strided:
            read = next(n for n, r in enumerate(block.node.reads) if r.source.same_as(load.source))
            found.append(Transpose(read, axis))
    if len(found) != 1:
        return None
    sizes = [analysis.static(block.extents[axis]) for axis in (found[0].axis, last)]
    return found[0] if all(size is not None and size >= TILE for size in sizes) else None


def tile(sch: s_tir.Schedule, block: BlockInfo, transpose: Transpose) -> None:
    """Bind one 32 x 32 tile of the output to a thread block of 32 x 8 threads."""
    handle = sch.get_sblock(block.name)
    loops = sch.get_loops(handle)
    contiguous = loops.pop()
    strided = loops.pop(transpose.axis)
    outer, column = sch.split(contiguous, factors=[None, TILE])
    across, row = sch.split(strided, factors=[None, TILE])
    sch.reorder(*loops, across, outer, row, column)
    grid = nest.fused(sch, row, [*loops, across, outer])
    fetch = sch.cache_read(handle, transpose.read, "shared")
    sch.compute_at(fetch, grid)
    sch.storage_align(fetch, 0, axis=-2, factor=TILE, offset=1)
    serial, thread = sch.split(row, factors=[None, TILE_ROWS])
    sch.reorder(thread, column, serial)
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.y")
    sch.bind(column, "threadIdx.x")
    inner = sch.get_loops(fetch)[1:]
    _, thread, column = sch.split(nest.fused(sch, fetch, inner), factors=[None, TILE_ROWS, TILE])
    sch.bind(thread, "threadIdx.y")
    sch.bind(column, "threadIdx.x")
