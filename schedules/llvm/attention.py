"""One kernel for softmax attention on CPUs: two multiplications with a softmax between them.

A task takes one head; inside it, tiles of queries (see ``attention_nest``).  A tile's scores live
in a small buffer from the first multiplication to the second, so the full score matrix is never
stored.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from .. import analysis
from ..analysis import BlockInfo, Contraction, static
from ..base import ScheduleRule
from .attention_nest import AttentionNest, AttentionParts
from .edges import move_last_tiles_inwards, separate_interior
from .indices import simplify_indices
from .machine import machine_of


class AttentionRule(ScheduleRule):
    """Scores, softmax over the keys, weighted sum of the values; only the batch may be symbolic."""

    name = "llvm.attention"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See ``ScheduleRule.check``."""
        if target.kind.name != "llvm":
            return f"the target is {target.kind.name}, not llvm"
        parts = find_parts(s_tir.Schedule(func))
        return parts if isinstance(parts, str) else None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See ``ScheduleRule.schedule``; the choices are fixed, ``tunable`` or not."""
        simple = simplify_indices(func)
        schedule = s_tir.Schedule(simple)
        parts = find_parts(schedule)
        if isinstance(parts, str):
            raise ValueError(parts)
        nest = AttentionNest(schedule, parts, machine_of(target))
        nest.build()
        main = schedule.mod["main"]
        if nest.edges:
            main = move_last_tiles_inwards(main, nest.edges)
        for variable, whole in nest.ragged_vectors:
            main = separate_interior(main, variable, variable < whole)
        return s_tir.Schedule(main)


def find_parts(schedule: s_tir.Schedule) -> AttentionParts | str:
    """Find the parts, or say what is missing."""
    infos = analysis.blocks(schedule)
    for info in infos:
        if info.store is None or "O" in info.kinds:
            return f"block {info.name} is neither a map nor a reduction of one statement"
    reductions = analysis.anchors(infos)
    forms = [(info, analysis.contraction_of(info)) for info in reductions]
    products = [(info, form) for info, form in forms if isinstance(form, Contraction)]
    if len(products) != 2:
        return f"the function has {len(products)} matrix multiplications; attention has two"
    (scores, scores_form), (result, result_form) = products
    between = [info for info in reductions if info is not scores and info is not result]
    if not between:
        return "there is no row reduction between the two multiplications"
    after_scores = analysis.descendants(infos, scores)
    before_result = analysis.ancestors(infos, result)
    for info in between:
        if not (_has(after_scores, info) and _has(before_result, info)):
            return f"the reduction {info.name} is not between the two multiplications"
        if info.kinds.count("R") != 1:
            return f"{info.name} reduces over more than one axis"
    left = next((i for i in infos if i.writes[0].same_as(result_form.left.source)), None)
    right = next((i for i in infos if i.writes[0].same_as(result_form.right.source)), None)
    if left is None or not _has(after_scores, left):
        return "the scores are not the left operand of the second multiplication"
    if right is not None and _has(after_scores, right):
        return "both operands of the second multiplication depend on the scores"
    later = analysis.descendants(infos, result)
    for info in infos:
        if info.is_output and not _has(later, info) and info is not result:
            return f"{info.name} is an output before the second multiplication"
    for info, form in products:
        if len(form.rows) != 1 or len(form.columns) != 1 or len(form.reduction) != 1:
            return f"{info.name} is not a plain batched multiplication"
        matrix = (*form.rows, *form.columns, *form.reduction)
        if any(static(info.extents[position]) is None for position in matrix):
            return f"{info.name} has a symbolic extent besides the batch"
    return AttentionParts(scores, scores_form, result, result_form, tuple(between))


def _has(infos: list[BlockInfo], wanted: BlockInfo) -> bool:
    return any(info is wanted for info in infos)
