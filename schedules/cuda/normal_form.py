"""Bring a group around one contraction to the form ``C[s, i, j] += A[s, k, i] * B[s, k, j]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from .. import analysis
from ..analysis import BlockInfo
from .contraction import Contraction, names
from .result_space import iterate_over_result


@dataclass(frozen=True)
class Normal:
    """The normalised group: handles of the contraction, of its two operands' fetches, and of the
    blocks that write the outputs, each of which iterates over ``(s, i, j)``."""

    main: SBlockRV
    left: SBlockRV
    right: SBlockRV
    outputs: tuple[SBlockRV, ...]


def normalise(
    schedule: s_tir.Schedule,
    contraction: Contraction,
    padding: tuple[int, int, int],
    left_order: str = "SKI",
    scope: str = "shared",
) -> Normal:
    """Rewrite the group to the normal form, rows, columns and reduction padded to multiples.

    The operands are read through new shared buffers laid out ``(s, k, i)`` and ``(s, k, j)``, so
    that a thread reads neighbouring rows (columns) of one ``k`` as one vector; ``left_order`` may
    ask for another order of the former.  Every producer is inlined into these fetches.  Every
    block between the contraction and an output is inlined into the output, whose iterators
    become ``(s, i, j)``.
    """
    main = contraction.block.handle
    reindex(schedule, contraction, left_order)
    schedule.pad_einsum(main, [1, *padding])
    left = schedule.cache_read(main, contraction.left, scope)
    right = schedule.cache_read(main, contraction.right, scope)
    inline_producers(schedule, (left, right))
    schedule.set_scope(main, 0, "local")
    outputs = inline_consumers(schedule, main)
    for output in outputs:
        iterate_over_result(schedule, main, output)
    return Normal(main, left, right, tuple(outputs))


def obstacle(schedule: s_tir.Schedule, contraction: Contraction) -> str | None:
    """Why the group has no normal form, or ``None``; ``schedule`` is used up by the attempt."""
    try:
        normalise(schedule, contraction, (1, 1, 1))
    except ValueError as error:
        return str(error)
    except (s_tir.ScheduleError, tvm.error.InternalError) as error:
        return f"the group has no normal form: {str(error).strip().splitlines()[-1]}"
    return None


def reindex(schedule: s_tir.Schedule, contraction: Contraction, left: str = "SKI") -> None:
    """Give operands and result buffers of their own with the axes (s, k, i), (s, k, j), (s, i, j).

    ``left`` is the order of the left operand's axes.
    """
    block, roles = contraction.block, contraction.roles
    loads = {"I": contraction.left, "J": contraction.right}
    for own in ("I", "J"):
        schedule.reindex(block.handle, ("read", loads[own]))
    schedule.reindex(block.handle, ("write", 0))
    node = schedule.get(block.handle)
    extents = [iterator.dom.extent for iterator in node.iter_vars]
    for own, position in loads.items():
        used = names([axis.min for axis in node.reads[position].region])
        kept = [at for at, it in enumerate(node.iter_vars) if it.var.name in used]
        order = left if own == "I" else "SKJ"
        map_ = fused_map([roles[at] for at in kept], [extents[at] for at in kept], order)
        schedule.transform_layout(block.handle, ("read", position), map_)
    used = names([axis.min for axis in node.writes[0].region])
    kept = [at for at, it in enumerate(node.iter_vars) if it.var.name in used]
    map_ = fused_map([roles[at] for at in kept], [extents[at] for at in kept], "SIJ")
    schedule.transform_layout(block.handle, ("write", 0), map_)
    schedule.transform_block_layout(block.handle, fused_map(roles, extents, "SIJK"))


def simplified(
    schedule: s_tir.Schedule, handles: Sequence[SBlockRV]
) -> tuple[s_tir.Schedule, list[SBlockRV]]:
    """A schedule of the same function with simpler index expressions, and the blocks in it.

    ``transform_block_layout`` leaves ``(j // 32 + s) % 12`` where ``s`` is meant, which later
    primitives do not see through.  The trace starts anew.
    """
    nodes = [info.node for info in analysis.blocks(schedule)]
    positions = [
        next(at for at, node in enumerate(nodes) if node.same_as(schedule.get(handle)))
        for handle in handles
    ]
    fresh = s_tir.Schedule(s_tir.transform.StmtSimplify()(schedule.mod))
    infos = analysis.blocks(fresh)
    return fresh, [infos[at].handle for at in positions]


def fused_map(roles: Sequence[str], extents: Sequence[ir.Expr], order: str) -> tirx.IndexMap:
    """The map that fuses, per role of ``order``, the axes of that role in row-major order."""
    axes = [tirx.Var(f"x{at}", "int64") for at in range(len(roles))]
    fused: dict[str, ir.Expr] = {}
    for axis, role, extent in zip(axes, roles, extents, strict=True):
        fused[role] = fused[role] * extent + axis if role in fused else axis
    zero = tirx.IntImm("int64", 0)
    return tirx.IndexMap(axes, [fused.get(role, zero) for role in order], None)


def inline_producers(schedule: s_tir.Schedule, fetches: Sequence[SBlockRV]) -> None:
    """Inline everything that the fetches depend on."""
    infos = analysis.blocks(schedule)
    wanted = [schedule.get(fetch) for fetch in fetches]
    roots = [info for info in infos if any(info.node.same_as(node) for node in wanted)]
    producers = [
        info
        for info in infos
        if any(info is other for root in roots for other in analysis.ancestors(infos, root))
    ]
    for info in producers:
        schedule.compute_inline(info.handle)


def inline_consumers(schedule: s_tir.Schedule, main: SBlockRV) -> list[SBlockRV]:
    """Inline everything between ``main`` and the outputs; each output then reads ``main`` only."""
    _split_chained_outputs(schedule, main)
    for info in _after(schedule, main):
        if not info.is_output:
            schedule.compute_inline(info.handle)
    # What is left to inline are constants of the epilogue, which depend on no block at all.
    infos = analysis.blocks(schedule)
    outputs = [info for info in infos if info.is_output]
    for output in outputs:
        for info in analysis.ancestors(infos, output):
            if info.is_injective and not info.is_output and not _is_kept(infos, info, outputs):
                schedule.compute_inline(info.handle)
    return [info.handle for info in outputs]


def _is_kept(infos: Sequence[BlockInfo], info: BlockInfo, outputs: Sequence[BlockInfo]) -> bool:
    """Whether a producer belongs to the contraction (its fetch) and not to an epilogue."""
    return any(user.is_reduction for user in analysis.consumers(infos, info))


def _after(schedule: s_tir.Schedule, main: SBlockRV) -> list[BlockInfo]:
    infos = analysis.blocks(schedule)
    node = schedule.get(main)
    root = next(info for info in infos if info.node.same_as(node))
    return analysis.descendants(infos, root)


def _split_chained_outputs(schedule: s_tir.Schedule, main: SBlockRV) -> None:
    """Let an output that others read be computed into a register, then copied.

    The readers take the register, so no thread reads global memory that the kernel writes.
    """
    for info in _after(schedule, main):
        infos = analysis.blocks(schedule)
        current = next(other for other in infos if other.name == info.name)
        users = analysis.consumers(infos, current)
        if current.is_output and users:
            handles = [user.handle for user in users]
            schedule.cache_write(current.handle, 0, "local", consumer_blocks=handles)
