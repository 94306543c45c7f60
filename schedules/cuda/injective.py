"""Elementwise groups on CUDA: every output in one nest, 128-bit accesses on the contiguous axis."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV
from tvm.target import Target

from .. import analysis
from ..analysis import BlockInfo
from ..base import ScheduleRule
from . import access, nest
from .machine import Machine

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
        thread = merge_outputs(sch, outputs, Machine.of(target))
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
    sch: s_tir.Schedule, outputs: list[BlockInfo], machine: Machine, widest: int | None = None
) -> LoopRV:
    """Put spatial nests into one grid of threads and bind it; return the thread's loop.

    Shapes: the flat extent of each output is split into (blocks, threads, elements).  A smaller
    output gets the same grid and a predicate.  ``widest`` bounds the elements per thread.
    """
    sizes = [nest.product(list(block.extents)) for block in outputs]
    vector = vector_length(outputs, sizes, machine)
    if widest is not None:
        vector = min(vector, widest)
    largest = max((size for size in sizes if isinstance(size, int)), default=None)
    threads = THREADS
    if largest is not None:
        while threads > machine.warp and largest < threads * vector * machine.multiprocessors:
            threads //= 2
    grids, lanes, elements = [], [], []
    for block, size in zip(outputs, sizes, strict=True):
        handle = sch.get_sblock(block.name)
        loops = sch.get_loops(handle)
        if vector > 1:
            loops[-1:] = sch.split(loops[-1], factors=[None, vector])
            elements.append(loops.pop())
        flat = nest.fused(sch, elements[-1] if vector > 1 else handle, loops)
        if largest is None or size == largest:
            grid, lane = sch.split(flat, factors=[None, threads])
        else:
            count = -(-largest // (threads * vector))
            grid, lane, _ = sch.split(flat, factors=[count, threads, None])
        grids.append(grid)
        lanes.append(lane)
    grid = nest.merged(sch, grids)
    lane = nest.merged(sch, lanes)
    sch.bind(grid, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    for block, element in zip(outputs, elements, strict=bool(elements)):
        _move_vectors(sch, block, lane, element, vector)
    return lane


def _move_vectors(
    sch: s_tir.Schedule, block: BlockInfo, thread: LoopRV, element: LoopRV, length: int
) -> None:
    """Load and store vectors, and compute their elements one by one in registers.

    A vectorised statement would do for additions; but TVM falls back to scalar accesses for the
    whole statement where a call has no vector form (erf), and loads under a condition stay as
    they are, unless the condition is the same for the whole vector.
    """
    handle = sch.get_sblock(block.name)
    around = access.Neighbours(block, length)
    loads = analysis.loads_of(block.node.body)
    guarded = bool(access.conditions_of(block.node.body))
    if guarded and access.contiguous(block, length):
        sch.vectorize(element)
        return
    for buffer in block.reads:
        patterns = [load for load in loads if load.source.same_as(buffer)]
        alike = all(tvm_ffi.structural_equal(load, patterns[0]) for load in patterns[1:])
        if guarded or not patterns or not alike or not _is_parameter(sch, buffer):
            continue
        if around.are_vector(buffer, list(patterns[0].indices)):
            position = next(
                number
                for number, region in enumerate(sch.get(handle).reads)
                if region.source.same_as(buffer)
            )
            fetch = sch.cache_read(handle, position, "local", consumer_blocks=[handle])
            sch.compute_at(fetch, thread)
            sch.vectorize(sch.get_loops(fetch)[-1])
    sch.unroll(element)
    store = sch.cache_write(handle, 0, "local")
    sch.reverse_compute_at(store, thread)
    sch.vectorize(sch.get_loops(store)[-1])


def _is_parameter(sch: s_tir.Schedule, buffer: ir.Var) -> bool:
    return any(buffer.same_as(parameter) for parameter in sch.mod["main"].params)


def vector_length(outputs: list[BlockInfo], sizes: list, machine: Machine) -> int:
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
