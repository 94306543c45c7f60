"""Norms, softmax and reductions on CUDA: a thread block (or a warp) takes a row from the inputs
to every output.

The reductions are cross-thread: each lane reduces its share, then the lanes are combined with warp
shuffles (TVM's allreduce).  Row intermediates that are dear to recompute stay in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import s_tir, tirx
from tvm.target import Target

from .. import analysis
from ..analysis import BlockInfo
from ..base import ScheduleRule
from . import access, accumulate, nest, row_nest, row_plan, row_registers, row_space, verify
from .machine import STATIC_SHARED_BYTES, Machine
from .row_space import RowSpace

LARGEST_ROW = 1 << 20
"""Iterations that one thread block may do for a group that is all one row."""


class RowRule(ScheduleRule):
    """Groups of reductions and spatial blocks over common rows."""

    name = "cuda.row"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """Decline where there is no reduction, or no row that every dependent block shares."""
        reason = nest.plain_blocks(func)
        if reason is not None:
            return reason
        reductions = analysis.anchors(analysis.blocks(nest.fresh_schedule(func)))
        if not reductions:
            return "the group has no reduction"
        for block in reductions:
            if not accumulate.is_commutative(block):
                return f"block {block.name} is no sum, product, minimum or maximum"
            if access.is_contraction(block):
                return f"block {block.name} is a contraction: a row would read a whole operand"
        made = attempt(func, Machine.of(target), one_row=False)
        return made if isinstance(made, str) else None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        made = attempt(func, Machine.of(target), one_row=False)
        if isinstance(made, str):
            raise ValueError(made)
        return made


def attempt(func: tirx.PrimFunc, machine: Machine, one_row: bool) -> s_tir.Schedule | str:
    """The scheduled group, or why there is none.

    With ``one_row`` the whole group is taken as one row, whatever rows it has.  Kept rows go to
    static shared memory, to dynamic shared memory above 48 KiB, and are recomputed where even
    that does not hold them.
    """
    reason = ""
    if not one_row:
        made = in_registers(func, machine)
        if made is not None:
            return made
    for keep in (True, False):
        sch = prepared(func, keep)
        space = row_space.find(analysis.blocks(sch), one_row)
        if isinstance(space, str):
            return space
        reason = _one_row_reason(analysis.blocks(sch), space)
        if reason:
            return reason
        for scope, limit in (("shared", STATIC_SHARED_BYTES), ("shared.dyn", None)):
            sch = prepared(func, keep)
            infos = analysis.blocks(sch)
            try:
                row_nest.build(sch, infos, row_plan.plan(infos, space, machine), scope)
            except s_tir.ScheduleError as error:
                return f"TVM refuses the row nest: {str(error).strip().splitlines()[-1]}"
            bounded = machine if limit is None else replace(machine, shared_limit=limit)
            reason = verify.one_kernel(sch.mod["main"], bounded) or ""
            if not reason:
                return sch
    return reason


def in_registers(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """The group with its rows in registers, or ``None`` where a row does not divide."""
    sch = prepared(func, keep=True)
    row_registers.stage_inputs(sch)
    infos = analysis.blocks(sch)
    space = row_space.find(infos)
    if isinstance(space, str) or not space.extents:
        return None
    chosen = row_registers.plan(infos, space, machine)
    if chosen is None:
        return None
    try:
        row_registers.build(sch, infos, chosen)
    except s_tir.ScheduleError:
        return None  # the plain row nest has fewer demands
    return sch if verify.one_kernel(sch.mod["main"], machine) is None else None


def _one_row_reason(infos: Sequence[BlockInfo], space: RowSpace) -> str:
    """Why one thread block should not do all the work alone; empty if it may.

    A lone full reduction may: no other kernel would do it in one launch.
    """
    if space.extents:
        return ""
    steps = [nest.product(list(block.extents)) for block in infos]
    if any(not isinstance(size, int) for size in steps):
        return "the group is one row of symbolic length"
    total = sum(size for size in steps if isinstance(size, int))
    if len(infos) > 2 and total > LARGEST_ROW:
        return f"the group is one row of {total} steps; at most {LARGEST_ROW} for a thread block"
    return ""


def prepared(func: tirx.PrimFunc, keep: bool) -> s_tir.Schedule:
    """The group with detached outputs; with ``keep``, dear row intermediates are not inlined."""
    sch = nest.fresh_schedule(func)
    nest.detach_outputs(sch)
    sch = accumulate.widened(sch)
    # Consumers first: what a reduction reads then shows in the reduction itself.
    for name in reversed([block.name for block in analysis.blocks(sch)]):
        infos = analysis.blocks(sch)
        block = next(info for info in infos if info.name == name)
        if block.is_output or not block.is_injective or (keep and is_kept(infos, block)):
            continue
        try:
            sch.compute_inline(sch.get_sblock(name))
        except s_tir.ScheduleError:
            continue  # the block stays and is computed within its row
    return nest.simplified(sch)


def is_kept(infos: Sequence[BlockInfo], block: BlockInfo) -> bool:
    """Whether a spatial intermediate is worth keeping: dear, used by several, and along a row.

    It lies along a row if a reduction runs over it; anything else is a value per row, which is
    recomputed.  Kept rows live in shared memory, so their length must be static.
    """
    users = analysis.consumers(infos, block)
    if len(users) < 2 or block.store is None:
        return False
    loads = analysis.loads_of(block.store.value)
    if not analysis.calls_of(block.store.value) and len(loads) < 2:
        return False
    for user in users:
        reduced = [
            iterator
            for iterator, kind in zip(user.iterators, user.kinds, strict=True)
            if kind == "R"
        ]
        for load in analysis.loads_of(user.node.body):
            if not load.source.same_as(block.writes[0]):
                continue
            for index, size in zip(load.indices, block.writes[0].shape, strict=True):
                used = analysis.variables_of(index)
                if any(variable.same_as(one) for variable in used for one in reduced):
                    return analysis.static(size) is not None
    return False
