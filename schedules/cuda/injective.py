"""Elementwise groups on CUDA: every output in one nest, 128-bit accesses on the contiguous axis."""

from __future__ import annotations

from tvm import s_tir, tirx
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
        return _unlike(sizes)

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


def _unlike(sizes: list) -> str | None:
    symbolic = [size for size in sizes if not isinstance(size, int)]
    if symbolic and any(str(size) != str(symbolic[0]) for size in sizes):
        return f"the outputs have unlike symbolic sizes: {', '.join(map(str, sizes))}"
    return None


def merge_outputs(
    sch: s_tir.Schedule, outputs: list[BlockInfo], machine: Machine
) -> s_tir.schedule.LoopRV:
    """Put spatial nests into one grid of threads and bind it; return the thread's loop.

    Shapes: the flat extent of each output is split into (blocks, threads, elements).  A smaller
    output gets the same grid and a predicate.
    """
    sizes = [nest.product(list(block.extents)) for block in outputs]
    vector = vector_length(outputs, sizes, machine)
    largest = max((size for size in sizes if isinstance(size, int)), default=None)
    threads = THREADS
    if largest is not None:
        while threads > machine.warp and largest < threads * vector * machine.multiprocessors:
            threads //= 2
    grids, lanes = [], []
    for block, size in zip(outputs, sizes, strict=True):
        handle = sch.get_sblock(block.name)
        loops = sch.get_loops(handle)
        if vector > 1:
            loops[-1:] = sch.split(loops[-1], factors=[None, vector])
            sch.vectorize(loops.pop())
        flat = nest.fused(sch, handle, loops)
        if largest is None:
            grid, lane = sch.split(flat, factors=[None, threads])
        elif size == largest:
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
    return lane


def vector_length(outputs: list[BlockInfo], sizes: list, machine: Machine) -> int:
    """Elements per thread: 16 bytes of the widest output, fewer for small or ragged ones.

    Every access must be contiguous over the vector, and the grid must still fill the machine.
    """
    widest = max(nest.bytes_of(str(block.writes[0].dtype)) for block in outputs)
    length = max(1, VECTOR_BYTES // widest)
    for block, size in zip(outputs, sizes, strict=True):
        while length > 1 and not access.contiguous(block, length):
            length //= 2
        if isinstance(size, int):
            while length > 1 and size < length * THREADS * machine.multiprocessors:
                length //= 2
    return length


def keep_in_registers(sch: s_tir.Schedule, block: BlockInfo, thread: s_tir.schedule.LoopRV) -> None:
    """Compute a block that was too large to inline inside the thread that uses it."""
    handle = sch.get_sblock(block.name)
    sch.compute_at(handle, thread, preserve_unit_loops=True)
    sch.set_scope(handle, 0, "local")
