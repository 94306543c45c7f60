"""The rule for attention: two contractions with row-wise reductions between them, in one kernel.

One block of threads takes one batch entry (batch and head) and a tile of queries.  It keeps the
tile's scores against *all* keys in shared memory, so the softmax is computed as written, by plain
reductions over rows, and scores never reach global memory.  Keys and values pass through shared
memory in chunks.  The length of the keys is therefore bounded by the shared memory; a longer one
needs the online softmax of flash attention, which this rule does not have.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from .. import analysis
from ..analysis import BlockInfo
from ..base import ScheduleRule
from . import contraction as contractions
from . import normal_form, result_space
from .attention_tile import AttentionTile, choose_tile, schedule_tile
from .contraction import Contraction
from .machine import Machine


@dataclass(frozen=True)
class Attention:
    """The parts of an attention group: ``scores = q k``, then row reductions, then ``p v``."""

    scores: Contraction
    rows: tuple[BlockInfo, ...]
    values: Contraction


@dataclass(frozen=True)
class Stages:
    """Handles of the blocks that remain once everything else is inlined, in program order.

    ``score`` writes the score tile from the first product; ``weight`` writes the operand of the
    second product from the score tile and the results of the row reductions.
    """

    query: SBlockRV
    key: SBlockRV
    product: SBlockRV
    score: SBlockRV
    rows: tuple[SBlockRV, ...]
    weight: SBlockRV
    value: SBlockRV
    mix: SBlockRV
    outputs: tuple[SBlockRV, ...]


class AttentionRule(ScheduleRule):
    """One kernel of attention with its slices, masks, guards and reshapes."""

    name = "cuda.attention"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :class:`ScheduleRule`; nothing is mutated."""
        schedule = s_tir.Schedule(func)
        found = find(analysis.blocks(schedule))
        if isinstance(found, str):
            return found
        tile = choose_tile(found.scores, found.values, Machine.of(target))
        if isinstance(tile, str):
            return tile
        try:
            separate(schedule, found, tile)
        except ValueError as error:
            return str(error)
        except (s_tir.ScheduleError, tvm.error.InternalError) as error:
            return f"the group has no normal form: {str(error).strip().splitlines()[-1]}"
        return None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :class:`ScheduleRule`."""
        schedule = s_tir.Schedule(func)
        found = find(analysis.blocks(schedule))
        if isinstance(found, str):
            raise ValueError(found)
        tile = choose_tile(found.scores, found.values, Machine.of(target))
        if isinstance(tile, str):
            raise ValueError(tile)
        schedule, stages = separate(schedule, found, tile)
        return schedule_tile(schedule, stages, tile)


def find(infos: list[BlockInfo]) -> Attention | str:
    """The group's attention, or why there is none."""
    odd = [info for info in infos if info.store is None]
    if odd:
        return f"block {odd[0].name} is not one store"
    reductions = analysis.anchors(infos)
    products = [
        (info, found)
        for info in reductions
        if isinstance(found := contractions.classify(info), Contraction)
    ]
    if len(products) != 2:
        return f"the group has {len(products)} contractions; attention has two"
    (first, scores), (second, values) = products
    before = analysis.ancestors(infos, second)
    after = analysis.descendants(infos, first)
    if not any(info is first for info in before):
        return "the second contraction does not depend on the first"
    if any(info.is_reduction for info in analysis.ancestors(infos, first)):
        return "an operand of the first contraction is reduced"
    rows = tuple(info for info in reductions if info is not first and info is not second)
    for info in rows:
        inside = any(info is other for other in before) and any(info is other for other in after)
        if not inside:
            return f"reduction {info.name} is not between the two contractions"
    if not rows:
        return "there is no reduction between the two contractions"
    last = analysis.descendants(infos, second)
    for info in infos:
        if info.is_output and info is not second and not any(info is other for other in last):
            return f"block {info.name} writes an output before the second contraction"
    return _connected(infos, Attention(scores, rows, values))


def _connected(infos: list[BlockInfo], found: Attention) -> Attention | str:
    """Check that scores reach the second contraction through its left operand only."""
    first, second = found.scores.block, found.values.block
    for position, wanted in ((found.values.left, True), (found.values.right, False)):
        buffer = second.node.reads[position].source
        writers = [info for info in infos if any(w.same_as(buffer) for w in info.writes)]
        reached = any(
            writer is first or any(first is info for info in analysis.ancestors(infos, writer))
            for writer in writers
        )
        if reached != wanted:
            return "the scores are not the left operand of the second contraction"
    return found


def separate(
    schedule: s_tir.Schedule, found: Attention, tile: AttentionTile
) -> tuple[s_tir.Schedule, Stages]:
    """Inline all but the stages, and give each stage the iterators ``(s, i, ...)``.

    Returns a new schedule of the function, and its stages; ``schedule`` is used up.
    Raises ``ValueError`` where a stage does not read the scores row by row.
    """
    product, mix = found.scores.block.handle, found.values.block.handle
    normal_form.reindex(schedule, found.scores)
    normal_form.reindex(schedule, found.values, left="SIK")
    schedule.pad_einsum(product, [1, tile.queries, tile.keys, 1])
    schedule.pad_einsum(mix, [1, tile.queries, tile.width, tile.keys])
    query = schedule.cache_read(product, found.scores.left, tile.scope)
    key = schedule.cache_read(product, found.scores.right, tile.scope)
    weight = schedule.cache_read(mix, found.values.left, tile.scope)
    value = schedule.cache_read(mix, found.values.right, tile.scope)
    rows = tuple(info.handle for info in found.rows)
    score = _score_block(schedule, product)
    stages = (query, key, product, score, *rows, weight, value, mix)
    kept = [schedule.get(stage).name_hint for stage in stages]
    for info in analysis.blocks(schedule):
        if info.name not in kept and not info.is_output and info.is_injective:
            schedule.compute_inline(info.handle)
    schedule.set_scope(product, 0, "local")
    schedule.set_scope(mix, 0, "local")
    result_space.iterate_over_result(schedule, product, score)
    _flatten_scores(schedule, score)
    for row in rows:
        _iterate_over_scores(schedule, score, row)
        _flatten_row(schedule, row)
        schedule.set_scope(row, 0, tile.scope)
    schedule.set_scope(score, 0, tile.scope)
    outputs = tuple(info.handle for info in analysis.blocks(schedule) if info.is_output)
    for output in outputs:
        result_space.iterate_over_result(schedule, mix, output)
    blocks = (query, key, product, score, weight, value, mix, *rows, *outputs)
    schedule, handles = normal_form.simplified(schedule, blocks)
    query, key, product, score, weight, value, mix, *others = handles
    rows, outputs = tuple(others[: len(rows)]), tuple(others[len(rows) :])
    return schedule, Stages(query, key, product, score, rows, weight, value, mix, outputs)


def _score_block(schedule: s_tir.Schedule, product: SBlockRV) -> SBlockRV:
    """The last block of the injective chain that the first product starts.

    The chain is where each result has one reader: the scale, the mask, reshapes.  Its end is what
    the row reductions read, and is worth keeping.
    """
    infos = analysis.blocks(schedule)
    node = schedule.get(product)
    current = next(info for info in infos if info.node.same_as(node))
    while True:
        users = analysis.consumers(infos, current)
        if len(users) != 1 or not users[0].is_injective:
            return current.handle
        current = users[0]


def _flatten_scores(schedule: s_tir.Schedule, score: SBlockRV) -> None:
    """Store the scores as ``(s, i, j)``, whatever shape they had.

    Only the leading axes may be fused: the last two must be the rows and columns as they are.
    """
    node = schedule.get(score)
    buffer = node.writes[0].source
    roles = "S" * (len(buffer.shape) - 2) + "IJ"
    schedule.transform_layout(
        score, ("write", 0), normal_form.fused_map(roles, list(buffer.shape), "SIJ")
    )


def _flatten_row(schedule: s_tir.Schedule, row: SBlockRV) -> None:
    """Store a row reduction's results as ``(s, i)``, in the same order as before."""
    node = schedule.get(row)
    rows = node.iter_vars[1].dom.extent

    def flatten(*axes: tirx.Var) -> list[ir.Expr]:
        place = axes[0]
        for axis, extent in zip(axes[1:], node.writes[0].source.shape[1:], strict=True):
            place = place * extent + axis
        return [place // rows, place % rows]

    schedule.transform_layout(row, ("write", 0), flatten)


def _iterate_over_scores(schedule: s_tir.Schedule, score: SBlockRV, row: SBlockRV) -> None:
    """Make a row reduction's iterators ``(s, i, k)``, the indices of the score that it reads."""
    node = schedule.get(row)
    buffer = schedule.get(score).writes[0].source
    indices = result_space.result_indices(node, buffer)
    if isinstance(indices, str):
        raise ValueError(indices)
    kinds = {it.var.name: it.iter_type for it in node.iter_vars}
    reduced = [
        [kinds[v.name] == tirx.IterVar.CommReduce for v in analysis.variables_of(index)]
        for index in indices
    ]
    if any(any(flags) for flags in reduced[:-1]) or not all(reduced[-1]):
        raise ValueError(f"reduction {node.name_hint} does not run along the keys")
    axes = [iterator.var for iterator in node.iter_vars]
    schedule.transform_block_layout(row, tirx.IndexMap(axes, indices, None))
