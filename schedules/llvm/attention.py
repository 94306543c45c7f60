"""One kernel for softmax attention on CPUs: two multiplications with a softmax between them.

A task takes one head; inside it, tiles of queries.  A tile's scores (queries x keys) live in a
small buffer from the first multiplication to the second, so the full score matrix is never stored;
the softmax runs on the whole row, as written, without the rescaling of online softmax, because a
row of scores fits the L2 cache at the lengths where one core is the unit of work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target
from tvm_ffi import get_global_func

from .. import analysis
from ..analysis import BlockInfo, Contraction, static
from ..base import ScheduleRule
from .edges import Edge, move_last_tiles_inwards, separate_interior
from .indices import simplify_indices
from .machine import Machine, machine_of
from .microkernel import Problem, Tile, ranked_tiles
from .operands import inline, inline_cheap_maps, keeps_vectors, named

_REALIZE = get_global_func("s_tir.schedule.GetSBlockRealize")
#: Most queries of one tile.
_MOST_QUERIES = 64


class AttentionRule(ScheduleRule):
    """Scores, softmax over the keys, weighted sum of the values; static shapes."""

    name = "llvm.attention"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See ``ScheduleRule.check``."""
        if target.kind.name != "llvm":
            return f"the target is {target.kind.name}, not llvm"
        parts = _parts(s_tir.Schedule(func))
        return parts if isinstance(parts, str) else None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See ``ScheduleRule.schedule``; the choices are fixed, ``tunable`` or not."""
        simple = simplify_indices(func)
        schedule = s_tir.Schedule(simple)
        parts = _parts(schedule)
        if isinstance(parts, str):
            raise ValueError(parts)
        builder = _Builder(schedule, parts, machine_of(target))
        builder.build()
        main = schedule.mod["main"]
        if builder.edges:
            main = move_last_tiles_inwards(main, builder.edges)
        for variable, whole in builder.ragged_vectors:
            main = separate_interior(main, variable, variable < whole)
        return s_tir.Schedule(main)


@dataclass(frozen=True)
class _Parts:
    """The blocks of attention: two multiplications and the row reductions between them."""

    scores: BlockInfo
    scores_form: Contraction
    result: BlockInfo
    result_form: Contraction
    reductions: tuple[BlockInfo, ...]

    @property
    def queries(self) -> int:
        """Rows of one head."""
        return static(self.result.extents[self.result_form.rows[-1]]) or 0

    @property
    def keys(self) -> int:
        """Length of a softmax row."""
        return static(self.scores.extents[self.scores_form.columns[-1]]) or 0


def _parts(schedule: s_tir.Schedule) -> _Parts | str:
    """Find the parts, or say what is missing."""
    infos = analysis.blocks(schedule)
    for info in infos:
        if info.store is None or "O" in info.kinds:
            return f"block {info.name} is neither a map nor a reduction of one statement"
        if any(static(extent) is None for extent in info.extents):
            return f"block {info.name} has a symbolic extent"
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
    return _Parts(scores, scores_form, result, result_form, tuple(between))


def _has(infos: list[BlockInfo], wanted: BlockInfo) -> bool:
    return any(info is wanted for info in infos)


class _Builder:
    """Builds the nest of one function.

    ``edges`` collects the ragged tiles of the multiplications, which may be computed twice, and
    ``ragged_vectors`` loops over vectors with the count of whole ones: maps and sums on a tile's
    buffers may not be repeated, because TVM lets a map overwrite its own input.
    """

    def __init__(self, schedule: s_tir.Schedule, parts: _Parts, machine: Machine) -> None:
        self.schedule = schedule
        self.parts = parts
        self.machine = machine
        self.edges: list[Edge] = []
        self.ragged_vectors: list[tuple[ir.Var, int]] = []

    def build(self) -> None:
        """Inline, tile the second multiplication, and pull everything else under its tiles."""
        schedule, parts = self.schedule, self.parts
        per_head = self._inline()
        partials = self._split_reductions()
        outputs = analysis.descendants(analysis.blocks(schedule), self._now(parts.result))
        epilogue = [info.handle for info in outputs]
        if parts.result.is_output:
            epilogue.insert(0, schedule.cache_write(parts.result.handle, 0, "global"))
        before = analysis.ancestors(analysis.blocks(schedule), self._now(parts.result))
        queries = self._queries_per_tile()
        loops = schedule.get_loops(parts.result.handle)
        form = parts.result_form
        row, column, reduce = (loops[p[0]] for p in (form.rows, form.columns, form.reduction))
        outer = [loops[p] for p in form.batch]
        tile_loop, row = schedule.split(row, [None, queries])
        schedule.reorder(*outer, tile_loop, row, column, reduce)
        heads = 1
        for loop in outer:
            heads *= static(schedule.get(loop).extent) or 1
        if heads >= 2 * self.machine.cores or not outer:
            task = schedule.fuse(*outer) if outer else tile_loop
            place = tile_loop
        else:
            task = place = schedule.fuse(*outer, tile_loop)
        schedule.parallel(task)
        if parts.queries % queries:
            index: ir.Expr = schedule.get(place).loop_var
            if place is task and heads > 1:
                index = index % -(-parts.queries // queries)
            self.edges.append(Edge(((index, queries),), parts.queries - queries))
        depth = 1 if task is place else 2
        inner = self._register_tile(parts.result.handle, queries, row, column, reduce)
        for block in epilogue:
            schedule.reverse_compute_at(block, inner)
            self._vectorize(block, depth + 2)
        for info in reversed(before):
            name = info.name
            schedule.compute_at(info.handle, task if name in per_head else place)
            below = 1 if name in per_head else depth
            if name == parts.scores.name:
                self._scores(depth, queries)
            elif info.is_injective:
                self._vectorize(info.handle, below)
            else:
                self._reduction(info.handle, below, name in partials)
        schedule.decompose_reduction(parts.result.handle, reduce)

    def _now(self, info: BlockInfo) -> BlockInfo:
        current = named(self.schedule, info.name)
        if current is None:
            raise ValueError(f"block {info.name} is gone")
        return current

    def _inline(self) -> set[str]:
        """Inline maps; the names of the kept blocks to compute once per head."""
        parts, infos = self.parts, analysis.blocks(self.schedule)
        direct: dict[str, BlockInfo | None] = {}
        for side, load in (
            ("queries", parts.scores_form.left),
            ("keys", parts.scores_form.right),
            ("weights", parts.result_form.left),
            ("values", parts.result_form.right),
        ):
            direct[side] = next((i for i in infos if i.writes[0].same_as(load.source)), None)
        anchors = {info.name for info in infos if info.is_reduction}
        inline_cheap_maps(self.schedule, anchors | {i.name for i in direct.values() if i})
        per_head: set[str] = set()
        for side, before in direct.items():
            info = named(self.schedule, before.name) if before is not None else None
            if info is None or info.is_output or side == "weights":
                continue
            form, anchor = (
                (parts.scores_form, parts.scores)
                if side in ("queries", "keys")
                else (parts.result_form, parts.result)
            )
            copies = analysis.is_copy(info)
            if side != "queries":
                column = anchor.iterators[form.columns[-1]]
                copies = copies and keeps_vectors(info, form, column)
            if not (copies and inline(self.schedule, info)) and side != "queries":
                per_head.add(info.name)
        return per_head

    def _split_reductions(self) -> set[str]:
        """Give each row reduction one partial result per vector lane; the partial blocks' names."""
        names: set[str] = set()
        for info in self.parts.reductions:
            axis = info.kinds.index("R")
            loop = self.schedule.get_loops(info.handle)[axis]
            extent = static(info.extents[axis]) or 1
            lanes = self.machine.lanes
            # TVM does not factor a ragged loop, so the lanes divide the row.
            while lanes > 1 and extent % lanes:
                lanes //= 2
            if lanes < 4 or extent <= lanes:
                continue
            _, lane = self.schedule.split(loop, [None, lanes])
            partial = self.schedule.rfactor(lane, len(info.writes[0].shape))
            names.add(self.schedule.get(partial).name_hint)
        return names

    def _queries_per_tile(self) -> int:
        """Queries whose scores take a fraction of the L2 cache; a divisor if one is near."""
        queries, keys = self.parts.queries, self.parts.keys
        budget = max(1, self.machine.l2_bytes // 4 // (4 * keys))
        most = min(queries, budget, _MOST_QUERIES)
        tiles = -(-queries // most)
        exact = [n for n in range(most // 2 + 1, most + 1) if queries % n == 0]
        return max(exact) if exact else min(queries, -(-queries // tiles // 8) * 8)

    def _tile_for(self, rows: int, columns: int, reduction: int) -> Tile:
        """The best register tile, preferring one that divides both extents."""
        problem = Problem(1, rows, columns, reduction)
        tiles = ranked_tiles(replace(problem), self.machine, self.machine.lanes)
        exact = [t for t in tiles if rows % t.rows == 0 and columns % t.columns == 0]
        return exact[0] if exact else tiles[0]

    def _register_tile(
        self, block: SBlockRV, queries: int, row: LoopRV, column: LoopRV, reduce: LoopRV
    ) -> LoopRV:
        """Tile one multiplication for registers; the loop whose body is one finished tile."""
        schedule = self.schedule
        rows, columns, length = (
            static(schedule.get(loop).extent) or 1 for loop in (row, column, reduce)
        )
        tile = self._tile_for(rows, columns, length)
        row_tile, row_inner = schedule.split(row, [None, tile.rows])
        column_tile, vector, lane = schedule.split(column, [None, tile.vectors, tile.lanes])
        schedule.reorder(column_tile, row_tile, reduce, row_inner, vector, lane)
        schedule.unroll(row_inner)
        schedule.unroll(vector)
        schedule.vectorize(lane)
        for loop, size, extent in (
            (row_tile, tile.rows, rows),
            (column_tile, tile.columns, columns),
        ):
            if extent % size:
                self.edges.append(Edge(((schedule.get(loop).loop_var, size),), extent - size))
        return row_tile

    def _scores(self, depth: int, queries: int) -> None:
        """Tile the first multiplication, already under the query tile."""
        block = self.parts.scores.handle
        form = self.parts.scores_form
        row, column, reduce = (
            self._loop_of(block, depth, positions[0])
            for positions in (form.rows, form.columns, form.reduction)
        )
        self._register_tile(block, queries, row, column, reduce)
        self.schedule.decompose_reduction(block, reduce)

    def _reduction(self, block: SBlockRV, depth: int, partial: bool) -> None:
        """Reduce row by row: the innermost loop runs over lanes for partial results."""
        schedule = self.schedule
        loops = schedule.get_loops(block)[depth:]
        kinds = [iterator.iter_type for iterator in schedule.get(block).iter_vars]
        axis = kinds.index(tirx.IterVar.CommReduce)
        over = [self._loop_of(block, depth, axis)]
        innermost = schedule.get(over[0])
        kept = [loop for loop in loops if not schedule.get(loop).same_as(innermost)]
        if not partial:
            self._interleave_rows(kept, over)
            schedule.decompose_reduction(block, over[0])
            return
        # ``rfactor`` puts the lanes first.
        lane, rows = kept[0], kept[1:]
        schedule.reorder(*rows, *over, lane)
        schedule.vectorize(lane)
        schedule.decompose_reduction(block, over[0])

    def _loop_of(self, block: SBlockRV, depth: int, position: int) -> LoopRV:
        """The loop below ``depth`` that runs over one block iterator; a new one of extent 1."""
        schedule = self.schedule
        used = analysis.variables_of(_REALIZE(schedule, block).iter_values[position])
        for loop in schedule.get_loops(block)[depth:]:
            if any(schedule.get(loop).loop_var.same_as(variable) for variable in used):
                return loop
        return schedule.add_unit_loop(block)

    def _interleave_rows(self, rows: list[LoopRV], over: list[LoopRV]) -> None:
        """Reduce several rows at once in scalar code: their chains of additions overlap."""
        schedule = self.schedule
        long = [loop for loop in rows if static(schedule.get(loop).extent) != 1]
        if not long:
            return
        extent = static(schedule.get(long[-1]).extent) or 1
        together = 8
        while extent % together:
            together //= 2
        outer, inner = schedule.split(long[-1], [None, together])
        short = [loop for loop in rows if loop is not long[-1]]
        schedule.reorder(*short, outer, *over, inner)
        schedule.unroll(inner)

    def _vectorize(self, block: SBlockRV, depth: int) -> None:
        """Vectorise the innermost long loop of a map; a ragged last vector moves inwards."""
        schedule = self.schedule
        loops = schedule.get_loops(block)[depth:]
        long = [loop for loop in loops if static(schedule.get(loop).extent) != 1]
        if not long:
            return
        extent = static(schedule.get(long[-1]).extent)
        if extent is None:
            raise ValueError("a map has a varying extent under the tile")
        lanes = self.machine.lanes
        while lanes > extent:
            lanes //= 2
        if lanes == 1:
            return
        vectors, lane = schedule.split(long[-1], [None, lanes])
        schedule.vectorize(lane)
        if extent % lanes:
            self.ragged_vectors.append((schedule.get(vectors).loop_var, extent // lanes))
