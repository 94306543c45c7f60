"""Steps that the row, injective and generic rules share: inline, split, merge, parallelise."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ..analysis import BlockInfo, blocks, consumers, loads_of, static
from .work import expression_size, is_expensive, iterations, store_of

#: Expressions larger than this are not inlined further: chains such as x * f(x) double each time.
_LARGEST_EXPRESSION = 200
#: Longest loop of whole vectors that is unrolled to resolve the condition of a partial one.
_LONGEST_UNROLLED = 32
_PARTITION = "pragma_loop_partition_hint"


def structure_reason(func: tirx.PrimFunc) -> str | None:
    """Why the steps of this file cannot take a function apart; ``None`` if they can."""
    if not isinstance(func.body, s_tir.SBlockRealize) or func.body.block.name_hint != "root":
        return "the function has no root block"
    loose: list[tirx.Stmt] = []

    def visit(node: tirx.Stmt) -> tvm_ffi.structural.WalkResult:
        if isinstance(node, s_tir.SBlock):
            return tvm_ffi.structural.WalkResult.SKIP
        if isinstance(node, tirx.BufferStore | tirx.Evaluate):
            loose.append(node)
        return tvm_ffi.structural.WalkResult.ADVANCE

    tvm_ffi.structural_walk(func.body.block.body, (tirx.Stmt, visit), order="pre")
    return "there are statements outside blocks" if loose else None


def block_reason(
    schedule: s_tir.Schedule, infos: Sequence[BlockInfo], info: BlockInfo
) -> str | None:
    """Why a block is not one plain loop nest that computes each of its values once."""
    if info.store is None or len(info.writes) != 1:
        return f"block {info.name} is not one store"
    if "O" in info.kinds:
        return f"block {info.name} has an iterator that is neither spatial nor reduced"
    if not has_plain_loops(schedule, info):
        return f"block {info.name} has been scheduled already"
    target = info.writes[0]
    if info.is_injective and any(target.same_as(buffer) for buffer in info.reads):
        return f"block {info.name} reads what it writes"
    if sum(target.same_as(buffer) for other in infos for buffer in other.writes) > 1:
        return f"block {info.name} shares what it writes with another block"
    return None


def separate_outputs(schedule: s_tir.Schedule) -> None:
    """Give every cheap output that other blocks read a copy, so that its value can be inlined.

    Before: ``out = f(x); y = g(out)``.  After: ``t = f(x); out = t; y = g(t)``.  The readers of an
    expensive output go on reading the output.
    """
    infos = blocks(schedule)
    for info in infos:
        value = info.store.value if info.store is not None else None
        if value is None or not info.is_injective or is_expensive(value):
            continue
        if info.is_output and consumers(infos, info):
            schedule.cache_write(info.handle, 0, "global")


def inline_intermediates(schedule: s_tir.Schedule) -> None:
    """Inline the data-parallel intermediates whose value is cheap, or is used once.

    Kept, as a buffer of their own: expensive values (exp, erf) that several blocks read or that
    a larger loop nest would recompute (a broadcast), and values whose consumers would grow
    beyond bounds.
    """
    position = 0
    while True:
        infos = blocks(schedule)
        if position >= len(infos):
            return
        info = infos[position]
        if _worth_inlining(infos, info) and _try_inline(schedule, info.handle):
            continue
        position += 1


def _worth_inlining(infos: Sequence[BlockInfo], info: BlockInfo) -> bool:
    if info.is_output or not info.is_injective or info.store is None:
        return False
    readers = consumers(infos, info)
    if not readers or any(reader.store is None for reader in readers):
        return False
    value = info.store.value
    size = expression_size(value)
    for reader in readers:
        loads = sum(
            load.source.same_as(info.writes[0]) for load in loads_of(store_of(reader).value)
        )
        if expression_size(store_of(reader).value) + loads * size > _LARGEST_EXPRESSION:
            return False
    if not is_expensive(value):
        return True
    return len(readers) == 1 and iterations(readers[0]) <= iterations(info)


def _try_inline(schedule: s_tir.Schedule, block: SBlockRV) -> bool:
    try:
        schedule.compute_inline(block)
    except s_tir.ScheduleError:
        return False
    return True


def has_plain_loops(schedule: s_tir.Schedule, info: BlockInfo) -> bool:
    """Whether a block stands in a nest of its own with one serial loop for each iterator.

    A block that runs once may have no loop at all.
    """
    loops = [schedule.get(loop) for loop in schedule.get_loops(info.handle)]
    if not loops:
        return all(static(extent) == 1 for extent in info.extents)
    return len(loops) == len(info.extents) and all(
        loop.kind == tirx.ForKind.SERIAL for loop in loops
    )


def vector_extent(extent: int, lanes: int, vectors: int, expensive: bool = False) -> int | None:
    """The extent of the vector loop that a reduction over ``extent`` elements is split into.

    A divisor of ``extent``, of at most ``vectors`` registers, if there is one.  Else the last
    vector is partial and runs lane by lane: then the width that leaves the least for it, and
    half a register where each element is ``expensive``.  ``None`` for an extent too short for
    half a register.
    """
    half = lanes // 2
    if half < 2 or extent < half:
        return None
    widths = [count * lanes for count in range(vectors, 0, -1)]
    whole = next((width for width in [*widths, half] if extent % width == 0), None)
    if whole is not None:
        return whole
    if expensive or extent < lanes:
        return half
    return min((width for width in widths if width <= extent), key=lambda width: extent % width)


def split_vector(schedule: s_tir.Schedule, loop: LoopRV, width: int) -> LoopRV | None:
    """Split a vector loop of ``width`` off ``loop`` and return it.

    Where ``width`` does not divide a static extent, the partial vector at the end is cut off, so
    that the whole vectors run without a condition: by TVM's LoopPartition, or by unrolling in
    functions with symbolic shapes, where LoopPartition of a static loop raises (it mixes int32
    and int64).  ``None``, with nothing done, where neither is possible.
    """
    extent = static(schedule.get(loop).extent)
    if extent is None:
        outer, inner = schedule.split(loop, factors=[None, width])
        schedule.annotate(outer, _PARTITION, 1)
        return inner
    partial = extent % width != 0
    symbolic = partial and _has_symbolic_shapes(schedule)
    if symbolic and extent // width >= _LONGEST_UNROLLED:
        return None
    outer, inner = schedule.split(loop, factors=[-(-extent // width), width])
    if symbolic:
        schedule.unroll(outer)
    elif partial:
        schedule.annotate(outer, _PARTITION, 1)
    return inner


def _has_symbolic_shapes(schedule: s_tir.Schedule) -> bool:
    parameters = schedule.mod["main"].params
    return any(static(size) is None for buffer in parameters for size in buffer.shape)


def vectorize_inner(schedule: s_tir.Schedule, loop: LoopRV, lanes: int, vectors: int = 1) -> None:
    """Vectorise a data-parallel loop over a contiguous axis by at most ``vectors`` registers.

    An extent that registers do not divide is left to LLVM's vectoriser, which makes better
    remainder loops than TVM's partial vectors.
    """
    extent = static(schedule.get(loop).extent)
    if extent is None:
        return
    for width in (count * lanes for count in range(vectors, 0, -1)):
        if extent % width == 0:
            _, inner = schedule.split(loop, factors=[None, width])
            schedule.vectorize(inner)
            return


def divisor_extent(extent: int, lanes: int, vectors: int) -> int | None:
    """The largest divisor of ``extent`` that fills at most ``vectors`` registers.

    Multiples of half a register count too: LLVM cuts 40 lanes into 16, 16 and 8.  ``None`` if
    there is none.
    """
    half = max(2, lanes // 2)
    for width in range(vectors * lanes, 0, -half):
        if extent % width == 0:
            return width
    return None


def parallelize(schedule: s_tir.Schedule, loop: LoopRV) -> None:
    """Run a loop over independent iterations in parallel, which the caller has to know.

    ``Schedule.parallel`` would check it, but refuses every loop that holds a decomposed
    reduction; and decomposing later fails where an extent is not a multiple of the vector.
    """
    node = schedule.get(loop)
    parallel = tirx.For(
        node.loop_var,
        node.min,
        node.extent,
        tirx.ForKind.PARALLEL,
        node.body,
        None,
        node.annotations,
    )
    schedule.state.replace(schedule.get_sref(loop), parallel)


def simplified(info: BlockInfo, indices: Sequence[ir.Expr]) -> list[ir.Expr]:
    """Index expressions simplified under the ranges of the block's iterators."""
    analyzer = sym.Analyzer()
    for item in info.node.iter_vars:
        analyzer.bind(item.var, item.dom)
    return [analyzer.simplify(index) for index in indices]


def long_iterators(info: BlockInfo, kinds: str = "SRO") -> list[int]:
    """The positions of the iterators of these kinds whose extent is not one."""
    return [
        position
        for position, (kind, extent) in enumerate(zip(info.kinds, info.extents, strict=True))
        if kind in kinds and static(extent) != 1
    ]


def reads_identically(producer: BlockInfo, reader: BlockInfo, count: int) -> bool:
    """Whether iteration i of ``reader`` reads only what iteration i of ``producer`` writes.

    i stands for the first ``count`` spatial iterators longer than one, which the caller knows to
    have the same extents in both blocks.  A reader of nothing that ``producer`` writes passes.
    """
    written = simplified(producer, store_of(producer).indices)
    theirs = [producer.iterators[position] for position in long_iterators(producer, "S")[:count]]
    mine = [reader.iterators[position] for position in long_iterators(reader, "S")[:count]]
    for load in loads_of(store_of(reader).value):
        if not load.source.same_as(producer.writes[0]):
            continue
        read = simplified(reader, load.indices)
        for row, own in zip(theirs, mine, strict=True):
            axes = [axis for axis, index in enumerate(written) if index.same_as(row)]
            if len(axes) != 1 or not read[axes[0]].same_as(own):
                return False
    return True
