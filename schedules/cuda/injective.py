"""Elementwise groups on CUDA: every output in one nest, 128-bit accesses on the contiguous axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV
from tvm.target import Target

from .. import analysis
from ..analysis import BlockInfo
from ..base import ScheduleRule
from . import access, nest, transpose
from .machine import Machine

Item = TypeVar("Item")

THREADS = 256
VECTOR_BYTES = 16


class InjectiveRule(ScheduleRule):
    """Groups whose every block is spatial, as one flat grid over the elements of the outputs.

    The intermediates are inlined; each thread computes one vector of every output.
    """

    name = "cuda.injective"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """Decline a reduction, a block that is no plain store, outputs of unlike symbolic size."""
        reason = nest.plain_blocks(func)
        if reason is not None:
            return reason
        sch = nest.fresh_schedule(func)
        sizes = []
        for block in analysis.blocks(sch):
            if not block.is_injective:
                return f"block {block.name} is a reduction"
            if block.is_output:
                sizes.append(nest.product(list(block.extents)))
        return unlike(sizes)

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        sch = nest.fresh_schedule(func)
        nest.detach_outputs(sch)
        nest.inline_injective(sch)
        infos = analysis.blocks(sch)
        outputs = [block for block in infos if block.is_output]
        kept = [block for block in infos if not block.is_output]
        moved = transpose.find(outputs[0]) if len(infos) == 1 else None
        if moved is not None:
            transpose.tile(sch, outputs[0], moved)
            return sch
        thread, _ = merge_outputs(sch, outputs, Machine.of(target))
        for block in reversed(kept):
            keep_in_registers(sch, block, thread)
        return sch


def unlike(sizes: list) -> str | None:
    """Why outputs of these sizes cannot share a grid: symbolic ones must be equal."""
    symbolic = [size for size in sizes if not isinstance(size, int)]
    if symbolic and any(str(size) != str(symbolic[0]) for size in sizes):
        return f"the outputs have unlike symbolic sizes: {', '.join(map(str, sizes))}"
    return None


def merge_outputs(
    sch: s_tir.Schedule,
    blocks: Sequence[BlockInfo],
    machine: Machine,
    widest: int | None = None,
) -> tuple[LoopRV, dict[str, LoopRV]]:
    """Put nests into one grid of threads and bind it.

    Returns the thread's loop, and each block's loop over the elements of a vector, if there is
    one.

    Shapes: the flat spatial extent of each block is split into (blocks, threads, elements).  A
    smaller output gets the same grid and a predicate.  ``widest`` bounds the elements per thread.
    Reductions among the blocks must run over the same elements as the output that uses them;
    their reduction loops stay inside the thread.
    """
    outputs = [block for block in blocks if block.is_output]
    vector = vector_length(outputs, machine)
    if widest is not None:
        vector = min(vector, widest)
    sizes = [nest.product(_spatial(block, list(block.extents))) for block in blocks]
    largest = max((size for size in sizes if isinstance(size, int)), default=None)
    threads = THREADS
    if largest is not None:
        while threads > machine.warp and largest < threads * vector * machine.multiprocessors:
            threads //= 2
    grids, lanes = [], []
    elements: dict[str, LoopRV] = {}
    for block, size in zip(blocks, sizes, strict=True):
        handle = sch.get_sblock(block.name)
        loops = sch.get_loops(handle)
        spatial = _spatial(block, loops)
        reduced = [loop for loop, kind in zip(loops, block.kinds, strict=True) if kind == "R"]
        if spatial and reduced:
            sch.reorder(*spatial, *reduced)
        if vector > 1:
            spatial[-1:] = sch.split(spatial[-1], factors=[None, vector])
            elements[block.name] = spatial.pop()
        inside = elements.get(block.name, reduced[0] if reduced else handle)
        flat = nest.fused(sch, inside, spatial)
        if largest is None or size == largest:
            grid, lane = sch.split(flat, factors=[None, threads])
        else:
            count = -(-largest // (threads * vector))
            grid, lane, _ = sch.split(flat, factors=[count, threads, None])
        grids.append(grid)
        lanes.append(lane)
        if reduced and block.name in elements:
            sch.reorder(*reduced, elements[block.name])
    grid = nest.merged(sch, grids)
    lane = nest.merged(sch, lanes)
    sch.bind(grid, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    for block in outputs:
        if block.name in elements:
            _move_vectors(sch, block, lane, elements[block.name], vector)
    return lane, elements


def _spatial(block: BlockInfo, items: Sequence[Item]) -> list[Item]:
    """Those of one item per iterator that belong to spatial iterators."""
    return [item for item, kind in zip(items, block.kinds, strict=True) if kind == "S"]


def _move_vectors(
    sch: s_tir.Schedule, block: BlockInfo, thread: LoopRV, element: LoopRV, length: int
) -> None:
    """Load and store vectors, and compute their elements one by one in registers.

    A vectorised statement would do for additions; but TVM falls back to scalar accesses for the
    whole statement where a call has no vector form (erf), and loads under a condition stay as
    they are, unless the condition is the same for the whole vector.
    """
    handle = sch.get_sblock(block.name)
    if access.conditions_of(block.node.body) and access.contiguous(block, length):
        sch.vectorize(element)
        return
    fetch_vectors(sch, block, thread, length)
    sch.unroll(element)
    store = sch.cache_write(handle, 0, "local")
    sch.reverse_compute_at(store, thread)
    sch.vectorize(sch.get_loops(store)[-1])


def fetch_vectors(
    sch: s_tir.Schedule,
    block: BlockInfo,
    loop: LoopRV,
    length: int,
    position: int | None = None,
) -> None:
    """Load the vectors that a block reads of parameters into registers, inside ``loop``.

    ``position`` is the iterator whose neighbours make the vector, by default the last.  What is
    read under a condition, or at several places, is left as it is.
    """
    if access.conditions_of(block.node.body):
        return
    handle = sch.get_sblock(block.name)
    around = access.Neighbours(block, length, position)
    loads = analysis.loads_of(block.node.body)
    for buffer in block.reads:
        patterns = [load for load in loads if load.source.same_as(buffer)]
        alike = all(tvm_ffi.structural_equal(load, patterns[0]) for load in patterns[1:])
        if not patterns or not alike or not _is_parameter(sch, buffer):
            continue
        if around.are_vector(buffer, list(patterns[0].indices)):
            number = next(
                number
                for number, region in enumerate(sch.get(handle).reads)
                if region.source.same_as(buffer)
            )
            fetch = sch.cache_read(handle, number, "local", consumer_blocks=[handle])
            sch.compute_at(fetch, loop)
            sch.vectorize(sch.get_loops(fetch)[-1])


def _is_parameter(sch: s_tir.Schedule, buffer: ir.Var) -> bool:
    return any(buffer.same_as(parameter) for parameter in sch.mod["main"].params)


def vector_length(outputs: Sequence[BlockInfo], machine: Machine) -> int:
    """Elements per thread: 16 bytes of the widest type, fewer for small or ragged outputs.

    Every access must be one vector or one element, and the grid must still fill the machine.
    """
    buffers = [buffer for block in outputs for buffer in (*block.reads, *block.writes)]
    if any(str(buffer.dtype) == "bool" for buffer in buffers):
        return 1
    length = max(1, VECTOR_BYTES // max(nest.bytes_of(str(buffer.dtype)) for buffer in buffers))
    for block in outputs:
        while length > 1 and not access.vector_accesses(block, length):
            length //= 2
    sizes = [nest.product(list(block.extents)) for block in outputs]
    largest = max((size for size in sizes if isinstance(size, int)), default=None)
    if largest is not None:
        while length > 1 and largest < length * THREADS * machine.multiprocessors:
            length //= 2
    return length


def keep_in_registers(sch: s_tir.Schedule, block: BlockInfo, thread: LoopRV) -> None:
    """Compute a block that was too large to inline inside the thread that uses it."""
    handle = sch.get_sblock(block.name)
    sch.compute_at(handle, thread, preserve_unit_loops=True)
    sch.set_scope(handle, 0, "local")
