"""Schedule steps that the convolution, depthwise and pooling rules share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import ir, s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ..analysis import BlockInfo, blocks, consumers, descendants, producers, static
from .conv_structure import is_plain_copy
from .conv_tile import vector_lanes
from .machine import Machine


@dataclass(frozen=True)
class Stages:
    """The blocks left after inlining.

    ``data`` produces the reduction's input (padding and what was inlined into it) and is to be
    computed per task; ``None`` if the reduction reads a parameter or a first stage directly.
    ``first`` run before everything else, over whole tensors (a cast of the weight, an output
    that the reduction reads).  ``outputs`` write the results; ``anchor_is_output`` tells whether
    the reduction's own result is one of them.
    """

    anchor: SBlockRV
    data: SBlockRV | None
    first: tuple[SBlockRV, ...]
    outputs: tuple[SBlockRV, ...]
    anchor_is_output: bool


def inline_stages(sch: s_tir.Schedule, source: ir.Var, reused: bool = True) -> Stages:
    """Inline every intermediate that need not be stored.

    ``source`` is the buffer that the reduction slides over; ``reused`` tells whether it reads an
    element more than once, so that what computes it deserves a buffer.
    """
    infos = blocks(sch)
    anchor = next(info for info in infos if info.is_reduction)
    after = descendants(infos, anchor)
    data, first = None, []
    for producer in producers(infos, anchor):
        makes_data = any(buffer.same_as(source) for buffer in producer.writes)
        alone = len(consumers(infos, producer)) == 1 and not producer.is_output
        cheap = is_plain_copy(producer) and not _computed(infos, producer)
        if makes_data and alone and (cheap or not reused):
            sch.compute_inline(producer.handle)
        elif makes_data and alone:
            data = producer.handle
        else:
            first.append(producer.handle)
    direct = producers(infos, anchor)
    for block in infos:
        if block is anchor or block.is_output or any(block is item for item in direct):
            continue
        sch.compute_inline(block.handle)
    outputs = []
    for block in infos:
        if not block.is_output or block is anchor or any(block is item for item in direct):
            continue
        if any(block is item for item in after):
            outputs.append(block.handle)
        else:
            first.append(block.handle)
    return Stages(anchor.handle, data, tuple(first), tuple(outputs), anchor.is_output)


def _computed(infos: Sequence[BlockInfo], block: BlockInfo) -> bool:
    return any(not producer.is_output for producer in producers(infos, block))


def keep_local(sch: s_tir.Schedule, stages: Stages) -> tuple[SBlockRV, ...]:
    """Put the reduction's result into local memory; the blocks that write the group's outputs."""
    if not stages.anchor_is_output:
        sch.set_scope(stages.anchor, 0, "local")
        return stages.outputs
    consumers_of_copy = list(stages.outputs) or None
    copy = sch.cache_write(stages.anchor, 0, "local", consumer_blocks=consumers_of_copy)
    return (copy, *stages.outputs)


def split_loop(
    sch: s_tir.Schedule, loop: LoopRV, factors: Sequence[int], limit: int, tunable: bool
) -> list[LoopRV]:
    """Split a loop into a free outermost loop and loops of the given extents.

    With ``tunable`` the extents are sampled instead, the innermost up to ``limit``, and
    ``factors`` is the first decision; a ragged split stays fixed, for only perfect ones can be
    sampled.
    """
    extent = static(sch.get(loop).extent)
    inner = prod(factors)
    if not tunable or extent is None or extent % inner != 0:
        return sch.split(loop, [None, *factors])
    decision = [extent // inner, *factors]
    sampled = sch.sample_perfect_tile(
        loop, n=len(decision), max_innermost_factor=limit, decision=decision
    )
    return sch.split(loop, sampled)


def vectorise_last(
    sch: s_tir.Schedule, block: SBlockRV, machine: Machine, fuse: bool = False
) -> None:
    """Vectorise the block's innermost loop by the best vector length that divides it.

    With ``fuse`` the loop is first fused with those around it until it fills a vector.
    """
    # Loops further out may be shared with other blocks and cannot be fused.
    *outer, loop = sch.get_loops(block)[-len(sch.get(block).iter_vars) :]
    extent = static(sch.get(loop).extent)
    while extent is not None and extent < machine.lanes and fuse and outer:
        loop = sch.fuse(outer.pop(), loop)
        extent = static(sch.get(loop).extent)
    if extent is None:
        return
    size = vector_lanes(extent, machine)
    if size == 1:
        return
    if size < extent:
        _, loop = sch.split(loop, [None, size])
    sch.vectorize(loop)


def parallel_stage(sch: s_tir.Schedule, block: SBlockRV, machine: Machine, parallel: bool) -> None:
    """Run a whole-tensor stage: outer axes fused and parallel, the last axis vectorised."""
    loops = sch.get_loops(block)
    outer: list[LoopRV] = loops[:-1]
    vectorise_last(sch, block, machine)
    if outer and parallel:
        sch.parallel(sch.fuse(*outer))


def tile_output(sch: s_tir.Schedule, output: SBlockRV, lanes: int) -> None:
    """Give an epilogue block, already attached to a register tile, the loops of the tile."""
    _, row, column, channel = sch.get_loops(output)[-4:]
    vector, lane = sch.split(channel, [None, lanes])
    for loop in (row, column, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
