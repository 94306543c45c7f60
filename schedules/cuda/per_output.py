"""One output element, or one vector of them, per thread; the reduction stays in the thread.

For short reductions over a window (pooling, depthwise convolution): neighbouring threads read
neighbouring elements, overlapping windows meet in the L1 cache, and whatever follows the reduction
happens in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from .. import analysis
from ..analysis import BlockInfo
from . import access, accumulate, injective, nest, row_space
from .machine import Machine

UNROLLED_STEPS = 64


def prepared(func: tirx.PrimFunc) -> s_tir.Schedule:
    """The group with independent outputs, all spatial, and its reductions as intermediates."""
    sch = nest.fresh_schedule(func)
    nest.detach_outputs(sch)
    sch = accumulate.widened(sch)
    nest.inline_injective(sch)
    return nest.simplified(sch)


def reason_against(func: tirx.PrimFunc) -> str | None:
    """Why the group cannot be computed one output per thread without repeating reductions."""
    reason = nest.plain_blocks(func)
    if reason is not None:
        return reason
    infos = analysis.blocks(prepared(func))
    reductions = analysis.anchors(infos)
    if not reductions:
        return "the group has no reduction"
    outputs = [block for block in infos if block.is_output]
    for block in reductions:
        for user in analysis.consumers(infos, block):
            if user.is_reduction:
                return f"reduction {user.name} needs reduction {block.name}"
            size, wanted = (nest.product(list(b.writes[0].shape)) for b in (block, user))
            if str(size) != str(wanted):
                return f"block {user.name} needs elements of {block.name} several times"
    sizes = [nest.product(list(block.extents)) for block in outputs]
    return injective.unlike(sizes)


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule:
    """One grid over the outputs; every reduction inside the thread that uses it.

    Where each result is used at its own index the reductions share the outputs' nest; elsewhere
    (a transposed result) they are computed at the thread that asks.
    """
    sch = prepared(func)
    infos = analysis.blocks(sch)
    reductions = analysis.anchors(infos)
    outputs = [block for block in infos if block.is_output]
    if len(reductions) + len(outputs) == len(infos) and _used_in_place(infos):
        lanes = vector_of(infos, reductions)
        _, elements = injective.merge_outputs(sch, infos, machine, lanes)
        for block in reductions:
            handle = sch.get_sblock(block.name)
            sch.set_scope(handle, 0, "local")
            _unroll_window(sch, block, elements.get(block.name))
        return sch
    thread, _ = injective.merge_outputs(sch, outputs, machine, 1)
    for block in reversed(infos):
        if not block.is_output:
            injective.keep_in_registers(sch, block, thread)
    return sch


def _used_in_place(infos: Sequence[BlockInfo]) -> bool:
    """Whether every block reads an intermediate's element only at its own spatial iterators."""
    for edge in row_space.edges_of(infos):
        reader, writer = infos[edge.consumer], infos[edge.producer]
        if [str(e) for e in reader.extents] != [
            str(e) for e, kind in zip(writer.extents, writer.kinds, strict=True) if kind == "S"
        ]:
            return False
        for indices in edge.loads:
            for index, iterator, extent in zip(
                indices, reader.iterators, reader.extents, strict=True
            ):
                if analysis.static(extent) != 1 and not index.same_as(iterator):
                    return False
    return True


def vector_of(infos: Sequence[BlockInfo], reductions: Sequence[BlockInfo]) -> int:
    """How many neighbours a thread may compute with vector loads: 1, 2 or 4.

    Every reduction must read vectors along its last spatial iterator, and that iterator must be
    the last one of the block that uses the result.
    """
    for length in (4, 2):
        if all(access.contiguous(block, length, _last_spatial(block)) for block in reductions):
            users = [user for block in reductions for user in analysis.consumers(infos, block)]
            if all(access.contiguous(user, length) for user in users):
                return length
    return 1


def _last_spatial(block: BlockInfo) -> int:
    return max((n for n, kind in enumerate(block.kinds) if kind == "S"), default=0)


def _unroll_window(sch: s_tir.Schedule, block: BlockInfo, element: LoopRV | None) -> None:
    """Unroll the reduction loops, vectorise the elements, set the first value before the loops."""
    handle = sch.get_sblock(block.name)
    loops = sch.get_loops(handle)
    if element is not None:
        loops = loops[:-1]
        sch.vectorize(element)
    window = loops[-block.kinds.count("R") :]
    sch.annotate(window[0], "pragma_auto_unroll_max_step", UNROLLED_STEPS)
    sch.annotate(window[0], "pragma_unroll_explicit", 0)
    sch.decompose_reduction(handle, window[0])


def window_iterators(block: BlockInfo) -> list[ir.Var]:
    """The reduction iterators that move a window: they share an index with a spatial one."""
    found: list[ir.Var] = []
    reduced = [v for v, kind in zip(block.iterators, block.kinds, strict=True) if kind == "R"]
    spatial = [v for v, kind in zip(block.iterators, block.kinds, strict=True) if kind == "S"]
    for load in analysis.loads_of(block.node.body):
        for index in load.indices:
            used = analysis.variables_of(index)
            if not any(one.same_as(other) for one in used for other in spatial):
                continue
            for iterator in reduced:
                if any(iterator.same_as(one) for one in used) and iterator not in found:
                    found.append(iterator)
    return found
