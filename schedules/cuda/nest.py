"""Steps that the CUDA rules share: detach the outputs, inline, merge nests, bind threads.

The method of every rule here: make the blocks that stay independent loop nests of equal outer
extents, merge those outer loops into one, and bind it.  A function whose blocks all sit in one
nest bound to ``blockIdx`` is one kernel.
"""

from __future__ import annotations

import tvm
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from .. import analysis
from ..analysis import BlockInfo

LARGEST_INLINED = 256
"""Loads in one statement above which a value used several times is kept, not recomputed."""


def fresh_schedule(func: tirx.PrimFunc) -> s_tir.Schedule:
    """A schedule of ``func`` whose main is named "main"; ``func`` stays as it is."""
    return s_tir.Schedule(func)


def plain_blocks(func: tirx.PrimFunc) -> str | None:
    """Why the blocks are not plain nests (one store per block, spatial or reduction), or None."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return "the function has no root block"
    found = analysis.blocks(s_tir.Schedule(func))
    if not found:
        return "the function has no block"
    for block in found:
        if "O" in block.kinds:
            return f"block {block.name} has an iterator that is neither spatial nor a reduction"
        if block.store is None:
            return f"block {block.name} is not one store"
    return None


def detach_outputs(sch: s_tir.Schedule) -> None:
    """Let no block read an output: its consumers read a copy of their own.

    Before::  out0 = f(x);  out1 = g(out0)
    After::   copy = f(x);  out0 = copy;  out1 = g(copy)

    Inlining then makes the outputs independent of each other, so that their nests can be merged.
    An output that is a reduction is detached too: TVM's cross-thread reduction writes its result
    without the bounds check of the block (out of bounds in the last thread block).
    """
    infos = analysis.blocks(sch)
    for block in infos:
        readers = analysis.consumers(infos, block)
        if block.is_output and (readers or block.is_reduction):
            handles = [sch.get_sblock(reader.name) for reader in readers]
            sch.cache_write(sch.get_sblock(block.name), 0, "global", consumer_blocks=handles)


def inline_injective(sch: s_tir.Schedule, limit: int = LARGEST_INLINED) -> None:
    """Inline every spatial intermediate, unless a statement would get more than ``limit`` loads."""
    for block in analysis.blocks(sch):
        current = next(info for info in analysis.blocks(sch) if info.name == block.name)
        if current.is_output or not current.is_injective or current.store is None:
            continue
        if grows_beyond(sch, current, limit):
            continue
        try:
            sch.compute_inline(sch.get_sblock(block.name))
        except s_tir.ScheduleError:
            continue  # e.g. the buffer is not written at plain iterators; the block stays


def simplified(sch: s_tir.Schedule) -> s_tir.Schedule:
    """A schedule of the same program with every index expression simplified.

    What inlined reshapes leave behind, ``(k // 64 + i) % 64`` with k < 64, hides that an index is
    a plain iterator, and TVM then overestimates the regions of shared buffers.

    Where nothing changes the pass returns a new function around the old body, and a schedule of
    that mutates the body in place, the caller's function with it (TVM 0.27): hence the test.
    """
    before = sch.mod
    after = s_tir.transform.StmtSimplify()(before)
    if after["main"].body.same_as(before["main"].body):
        return sch
    return s_tir.Schedule(after)


def grows_beyond(sch: s_tir.Schedule, block: BlockInfo, limit: int) -> bool:
    """Whether inlining ``block`` gives a consumer more than ``limit`` loads by duplication."""
    own = len(analysis.loads_of(block.node.body))
    for consumer in analysis.consumers(analysis.blocks(sch), block):
        loads = analysis.loads_of(consumer.node.body)
        uses = sum(load.source.same_as(block.writes[0]) for load in loads)
        if uses > 1 and uses * own + len(loads) > limit:
            return True
    return False


def fused(sch: s_tir.Schedule, inside: SBlockRV | LoopRV, loops: list[LoopRV]) -> LoopRV:
    """The loops fused into one; if there is none, a new unit loop around ``inside``."""
    if not loops:
        return sch.add_unit_loop(inside)
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def merged(sch: s_tir.Schedule, loops: list[LoopRV]) -> LoopRV:
    """Loops of separate nests and equal extent as one loop over their bodies in order."""
    return sch.merge(*loops) if len(loops) > 1 else loops[0]


def product(extents: list[ir.Expr]) -> ir.Expr | int:
    """The product of extents: an int if all are static, else a simplified expression."""
    total: ir.Expr | int = 1
    for extent in extents:
        size = analysis.static(extent)
        total = total * (extent if size is None else size)
    if isinstance(total, int):
        return total
    simplified = tvm.sym.Analyzer().simplify(total)
    size = analysis.static(simplified)
    return simplified if size is None else size


def bytes_of(dtype: str) -> int:
    """Bytes of one element in memory; a bool takes one."""
    return max(1, (tvm.DataType(dtype).bits + 7) // 8)
