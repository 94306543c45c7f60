"""The loop nest of softmax attention on CPUs.

A tile of scores (queries x keys) stays in a small buffer from the first multiplication to the
second.  The softmax runs on whole rows, as written, without the rescaling of online softmax: a row
of scores fits the L2 cache at the lengths where one core is the unit of work.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm_ffi import get_global_func

from .. import analysis
from ..analysis import BlockInfo, Contraction, static
from .edges import Edge
from .machine import Machine
from .microkernel import Problem, Tile, ranked_tiles
from .operands import inline, inline_cheap_maps, keeps_vectors, named

_REALIZE = get_global_func("s_tir.schedule.GetSBlockRealize")
#: Most queries of one tile.
_MOST_QUERIES = 64


@dataclass(frozen=True)
class AttentionParts:
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


class AttentionNest:
    """Builds the nest of one function.

    ``edges`` collects the ragged tiles of the multiplications, which may be computed twice, and
    ``ragged_vectors`` loops over vectors with the count of whole ones: maps and sums on a tile's
    buffers may not be repeated, because TVM lets a map overwrite its own input.
    """

    def __init__(self, schedule: s_tir.Schedule, parts: AttentionParts, machine: Machine) -> None:
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
        enough = 2 * self.machine.cores
        heads = 1
        for loop in outer:
            heads *= static(schedule.get(loop).extent) or enough
        if heads >= enough or not outer:
            task = schedule.fuse(*outer) if outer else tile_loop
            place = tile_loop
        else:
            task = place = schedule.fuse(*outer, tile_loop)
        sizes = [static(schedule.get(loop).extent) or 1 for loop in (column, reduce)]
        if 4 * heads * parts.queries * sizes[0] * sizes[1] >= self.machine.grain:
            schedule.parallel(task)
        if parts.queries % queries:
            index: ir.Expr = schedule.get(place).loop_var
            if place is task and heads > 1:
                index = index % -(-parts.queries // queries)
            self.edges.append(Edge(((index, queries),), parts.queries - queries))
        depth = 1 if task is place else 2
        inner, elements = self._register_tile(parts.result.handle, row, column, reduce)
        for block in epilogue:
            schedule.reverse_compute_at(block, inner)
            self._check_covers(block, depth + 2, elements)
            self._vectorize(block, depth + 2)
        for info in reversed(before):
            name = info.name
            schedule.compute_at(info.handle, task if name in per_head else place)
            below = 1 if name in per_head else depth
            if name == parts.scores.name:
                self._scores(depth)
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
        """Queries whose scores take a fraction of the L2 cache, with little computed twice."""
        queries, keys = self.parts.queries, self.parts.keys
        budget = max(1, self.machine.l2_bytes // 4 // (4 * keys))
        most = min(queries, budget, _MOST_QUERIES)

        def wasted(count: int) -> tuple[int, bool, int]:
            return -(-queries // count) * count, count % 8 != 0, -count

        return min(range(most // 2 + 1, most + 1), key=wasted)

    def _tile_for(self, rows: int, columns: int, reduction: int) -> Tile:
        """The best register tile, preferring one that divides both extents."""
        problem = Problem(1, rows, columns, reduction)
        tiles = ranked_tiles(problem, self.machine, self.machine.lanes)
        exact = [t for t in tiles if rows % t.rows == 0 and columns % t.columns == 0]
        return exact[0] if exact else tiles[0]

    def _register_tile(
        self, block: SBlockRV, row: LoopRV, column: LoopRV, reduce: LoopRV
    ) -> tuple[LoopRV, int]:
        """Tile one multiplication for registers; the loop whose body is one tile, and its size."""
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
        return row_tile, tile.rows * tile.columns

    def _check_covers(self, block: SBlockRV, depth: int, elements: int) -> None:
        """Raise ``ValueError`` unless the block's loops cover one tile: see ``attach_epilogue``."""
        covered = 1
        for loop in self.schedule.get_loops(block)[depth:]:
            covered *= static(self.schedule.get(loop).extent) or 0
        if covered != elements:
            raise ValueError("the output's layout cuts across the tiles of the result")

    def _scores(self, depth: int) -> None:
        """Tile the first multiplication, already under the query tile."""
        block = self.parts.scores.handle
        form = self.parts.scores_form
        row, column, reduce = (
            self._loop_of(block, depth, positions[0])
            for positions in (form.rows, form.columns, form.reduction)
        )
        self._register_tile(block, row, column, reduce)
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
