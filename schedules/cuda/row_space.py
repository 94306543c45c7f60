"""Which iterators of each block run over the rows that a whole group shares.

A row is a set of elements that depend on each other only: whatever a block reads of an
intermediate at row r, another block wrote at row r.  Then one thread block can compute a row from
the inputs to the outputs, and the group is one kernel.  The rows are found by following plain
index expressions from a reduction's spatial iterators through every producer and consumer, and
dropping each iterator for which the two sides disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir

from .. import analysis
from ..analysis import BlockInfo
from . import access

Assignment = dict[int, dict[int, int]]
"""Block number -> row dimension -> position of the iterator in that block."""


@dataclass(frozen=True)
class Edge:
    """A block that reads an intermediate: every load's simplified indices, and the writer."""

    producer: int
    consumer: int
    written: tuple[ir.Expr, ...]
    loads: tuple[tuple[ir.Expr, ...], ...]


@dataclass(frozen=True)
class RowSpace:
    """The rows of a group.

    ``positions`` has for each block the positions of its row iterators in the common order, or
    ``None`` for a block that depends on no other and does not begin with the same dimensions (its
    elements may be shared out at will).
    ``extents`` are those of the row dimensions; none means that the whole group is one row.
    """

    positions: tuple[tuple[int, ...] | None, ...]
    extents: tuple[ir.Expr, ...]


def edges_of(infos: Sequence[BlockInfo]) -> list[Edge]:
    """Every (writer, reader) pair of blocks; each block must be one store."""
    found = []
    for number, block in enumerate(infos):
        store = block.store
        if store is None:
            continue
        analyzer = access.bound_analyzer(block)
        for other, producer in enumerate(infos):
            source = producer.store
            if other == number or source is None:
                continue
            loads = tuple(
                tuple(analyzer.simplify(index) for index in load.indices)
                for load in analysis.loads_of(store.value)
                if load.source.same_as(source.buffer)
            )
            if loads:
                found.append(Edge(other, number, tuple(source.indices), loads))
    return found


def find(infos: Sequence[BlockInfo], one_row: bool = False) -> RowSpace | str:
    """The largest row space that all dependent blocks share, or why there is none.

    With ``one_row`` the answer is always that everything is one row.
    """
    if one_row:
        return RowSpace(((),) * len(infos), ())
    edges = edges_of(infos)
    linked = {number for edge in edges for number in (edge.producer, edge.consumer)}
    linked |= {number for number, block in enumerate(infos) if block.is_reduction}
    components = _components(sorted(linked), edges)
    positions: list[tuple[int, ...] | None] = [None] * len(infos)
    extents: tuple[ir.Expr, ...] | None = None
    for members in components:
        best: Assignment = {number: {} for number in members}
        seed_of_best = members[0]
        for seed in (number for number in members if infos[number].is_reduction):
            rows = _settle(infos, edges, members, seed)
            if len(rows[seed]) > len(best[seed_of_best]):
                best, seed_of_best = rows, seed
        order = sorted(best[seed_of_best], key=lambda row: best[seed_of_best][row])
        here = tuple(infos[seed_of_best].extents[best[seed_of_best][row]] for row in order)
        if extents is None:
            extents = here
        elif [str(extent) for extent in extents] != [str(extent) for extent in here]:
            return f"two reductions that do not meet have unlike rows: {extents} and {here}"
        for number in members:
            positions[number] = tuple(best[number][row] for row in order)
    common = extents or ()
    for number, block in enumerate(infos):
        leading = [str(extent) for extent in block.extents[: len(common)]]
        if positions[number] is None and leading == [str(extent) for extent in common]:
            positions[number] = tuple(range(len(common)))
    if None in positions and any(analysis.static(extent) is None for extent in common):
        return "an output has other dimensions than the symbolic rows"
    return RowSpace(tuple(positions), common)


def _components(numbers: list[int], edges: list[Edge]) -> list[list[int]]:
    """Blocks that are connected by edges, as sorted lists."""
    left, found = set(numbers), []
    for number in numbers:
        if number not in left:
            continue
        members, frontier = {number}, [number]
        while frontier:
            current = frontier.pop()
            for edge in edges:
                if current in (edge.producer, edge.consumer):
                    for other in (edge.producer, edge.consumer):
                        if other not in members:
                            members.add(other)
                            frontier.append(other)
        left -= members
        found.append(sorted(members))
    return found


def _settle(
    infos: Sequence[BlockInfo], edges: list[Edge], members: list[int], seed: int
) -> Assignment:
    """Follow the seed's spatial iterators through the component; drop those that do not hold."""
    rows = [
        position
        for position, (kind, extent) in enumerate(
            zip(infos[seed].kinds, infos[seed].extents, strict=True)
        )
        if kind == "S" and analysis.static(extent) != 1
    ]
    inside = [edge for edge in edges if edge.consumer in members]
    while True:
        assigned: Assignment = {number: {} for number in members}
        assigned[seed] = {row: row for row in rows}
        failed = _propagate(infos, inside, assigned)
        if failed is None:
            failed = next(
                (row for row in rows if any(row not in assigned[number] for number in members)),
                None,
            )
        if failed is None:
            return assigned
        rows.remove(failed)


def _propagate(infos: Sequence[BlockInfo], edges: list[Edge], assigned: Assignment) -> int | None:
    """Extend the assignment along every edge until nothing changes; return a row that breaks."""
    changed = True
    while changed:
        changed = False
        for edge in edges:
            writer, reader = infos[edge.producer], infos[edge.consumer]
            links = _links(edge, writer, reader)
            known_writer, known_reader = assigned[edge.producer], assigned[edge.consumer]
            for row in sorted({*known_writer, *known_reader}):
                pair = None
                if row in known_writer:
                    pair = next((p for p in links if p[0] == known_writer[row]), None)
                else:
                    pair = next((p for p in links if p[1] == known_reader[row]), None)
                if pair is None:
                    return row
                for known, position in ((known_writer, pair[0]), (known_reader, pair[1])):
                    if known.get(row, position) != position:
                        return row
                    if row not in known:
                        known[row] = position
                        changed = True
    return None


def _links(edge: Edge, writer: BlockInfo, reader: BlockInfo) -> list[tuple[int, int]]:
    """Pairs (writer's iterator, reader's iterator) that are equal at every load of the edge."""
    links = []
    for dimension, target in enumerate(edge.written):
        source = _position(writer, target)
        if source is None or writer.kinds[source] != "S":
            continue
        positions = {_position(reader, indices[dimension]) for indices in edge.loads}
        position = positions.pop()
        if not positions and position is not None and reader.kinds[position] == "S":
            links.append((source, position))
    return links


def _position(block: BlockInfo, index: ir.Expr) -> int | None:
    """Which iterator of the block an index is; ``None`` if it is any other expression."""
    for position, iterator in enumerate(block.iterators):
        if iterator.same_as(index):
            return position
    return None
