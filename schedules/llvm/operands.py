"""Inlining around a matrix multiplication: what is read through, and what is computed before.

Every injective block before or after the anchor is inlined if repeating it at each use is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from .. import analysis
from ..analysis import BlockInfo, Contraction

#: An injective block is inlined while its loads, repeated at each use, stay below this.
_INLINE_LIMIT = 64


@dataclass(frozen=True)
class Operands:
    """What stays before the anchor.

    ``panel`` produces the right operand and is not inlined: it is to be computed for one tile of
    columns at a time, which packs it.  Other blocks that stay are loop nests of their own.
    ``along_reduction`` says that neighbours of the right operand, read through the panel's block,
    are neighbours along the reduction: the operand is stored transposed.
    """

    panel: SBlockRV | None
    along_reduction: bool


def inline_maps(schedule: s_tir.Schedule, anchor: BlockInfo, form: Contraction) -> Operands:
    """Inline every injective block that costs little to repeat, before and after the anchor.

    What stays: outputs, dear blocks with several uses, and the last block before an operand if
    reading through it would repeat dear work or make the vector loads strided.
    """
    infos = analysis.blocks(schedule)
    direct: dict[str, BlockInfo | None] = {}
    for side, load in (("left", form.left), ("right", form.right)):
        writers = [i for i in infos if any(load.source.same_as(b) for b in i.writes)]
        direct[side] = writers[0] if writers else None
    waiting = [info.name for info in direct.values() if info is not None]
    inline_cheap_maps(schedule, {anchor.name, *waiting})
    panel, packed = None, None
    for side, before in direct.items():
        info = named(schedule, before.name) if before is not None else None
        if info is None or info.is_output:
            continue
        value = _value(info)
        cheap = len(analysis.loads_of(value)) <= 2 and not analysis.calls_of(value)
        if side == "right":
            cheap = cheap and keeps_vectors(info, form, anchor.iterators[form.columns[-1]])
        if not (cheap and inline(schedule, info)) and side == "right":
            panel, packed = info.handle, info
    reduced = anchor.iterators[form.reduction[-1]]
    if packed is not None:
        along = keeps_vectors(packed, form, reduced)
    else:
        along = direct["right"] is None and _uses(form.right.indices[-1], reduced)
    return Operands(panel, along)


def inline_cheap_maps(schedule: s_tir.Schedule, kept: set[str]) -> None:
    """Inline every injective block outside ``kept`` that is no output and cheap to repeat."""
    # One pass suffices: inlining a block changes only its consumers, which come later.
    for name in [info.name for info in analysis.blocks(schedule)]:
        infos = analysis.blocks(schedule)
        info = next(info for info in infos if info.name == name)
        if name not in kept and not info.is_output and _cheap_to_inline(infos, info):
            inline(schedule, info)


def named(schedule: s_tir.Schedule, name: str) -> BlockInfo | None:
    """The block of that name, if it was not inlined."""
    return next((info for info in analysis.blocks(schedule) if info.name == name), None)


def inline(schedule: s_tir.Schedule, info: BlockInfo) -> bool:
    """Inline one block; ``False`` if TVM refuses, and then the block simply stays."""
    try:
        schedule.compute_inline(info.handle)
    except s_tir.ScheduleError:
        return False
    return True


def _value(info: BlockInfo) -> tirx.Expr:
    if info.store is None:
        raise ValueError(f"block {info.name} is not one store")
    return info.store.value


def _uses(expression: tirx.Expr, variable: tirx.Var) -> bool:
    return any(variable.same_as(used) for used in analysis.variables_of(expression))


def _cheap_to_inline(infos: list[BlockInfo], info: BlockInfo) -> bool:
    """Whether repeating the block at each use stays small; calls (exp, erf) are used once."""
    if not info.is_injective:
        return False
    uses = sum(
        load.source.same_as(info.writes[0])
        for other in infos
        for load in analysis.loads_of(_value(other))
    )
    size = len(analysis.loads_of(_value(info)))
    dear = bool(analysis.calls_of(_value(info)))
    return uses == 1 or (uses > 1 and not dear and size * uses <= _INLINE_LIMIT)


def keeps_vectors(info: BlockInfo, form: Contraction, along: tirx.Var) -> bool:
    """Whether neighbours of the right operand along one of the anchor's iterators are neighbours
    in memory too if it is read through ``info``.
    """
    store, loads = info.store, analysis.loads_of(_value(info))
    if store is None or not loads or not loads[0].indices:
        return True
    for read, written in zip(form.right.indices, store.indices, strict=True):
        if read.same_as(along):
            return _uses(loads[0].indices[-1], written)
    return False
