"""Rows that stay in registers: each input element is loaded once, in 128-bit vectors.

Where the length of a row is static and divides, every lane owns the same (steps, vector) elements
of the row in every block of the group.  Staged inputs and kept intermediates are then arrays in
the lane's registers, and nothing but the reductions crosses lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, s_tir
from tvm.s_tir.schedule import LoopRV

from .. import analysis
from ..analysis import BlockInfo
from . import access, injective, nest, row_nest, row_space
from .machine import Machine
from .row_space import RowSpace

MOST_ELEMENTS = 32
"""Elements of a row per lane: a few arrays of this length fit the registers of a thread."""


@dataclass(frozen=True)
class RegisterPlan:
    """``rows`` rows per thread block; a row has ``steps * lanes * vector`` elements."""

    space: RowSpace
    rows: int
    steps: int
    lanes: int
    vector: int


def stage_inputs(sch: s_tir.Schedule) -> None:
    """Give every parameter that several blocks read element by element a copy to read from.

    Only where all indices are plain iterators, so that the copy has rows like any other block.
    """
    infos = analysis.blocks(sch)
    for parameter in sch.mod["main"].params:
        users = [block for block in infos if any(r.same_as(parameter) for r in block.reads)]
        loads = [
            (block, load)
            for block in users
            for load in analysis.loads_of(block.node.body)
            if load.source.same_as(parameter)
        ]
        plain = all(
            any(index.same_as(iterator) for iterator in block.iterators)
            or analysis.static(size) == 1
            for block, load in loads
            for index, size in zip(load.indices, parameter.shape, strict=True)
        )
        if len(users) < 2 or not plain:
            continue
        reads = sch.get(sch.get_sblock(users[0].name)).reads
        number = next(n for n, region in enumerate(reads) if region.source.same_as(parameter))
        handles = [sch.get_sblock(block.name) for block in users]
        sch.cache_read(handles[0], number, "global", consumer_blocks=handles)


def row_iterator(block: BlockInfo, positions: tuple[int, ...]) -> int | None:
    """The position of the one iterator that runs along the row; ``None`` if there is none.

    Raises ``ValueError`` if there are several.
    """
    along = [
        number
        for number, extent in enumerate(block.extents)
        if number not in positions and analysis.static(extent) != 1
    ]
    if len(along) > 1:
        raise ValueError(f"block {block.name} has several iterators along a row")
    return along[0] if along else None


def plan(infos: Sequence[BlockInfo], space: RowSpace, machine: Machine) -> RegisterPlan | None:
    """Lanes and vectors for rows of one static length that all blocks share, or ``None``."""
    lengths, widths = set(), {1}
    along: list[tuple[BlockInfo, int]] = []
    for block, positions in zip(infos, space.positions, strict=True):
        if positions is None:
            return None
        try:
            number = row_iterator(block, positions)
        except ValueError:
            return None
        if number is None:
            if not block.is_output and not block.is_reduction:
                return None
            continue
        if block.is_reduction and block.kinds[number] == "S":
            return None
        lengths.add(analysis.static(block.extents[number]))
        widths |= {nest.bytes_of(str(b.dtype)) for b in (*block.reads, *block.writes)}
        along.append((block, number))
    length = lengths.pop() if lengths else None
    if lengths or length is None or not _owned(infos, space):
        return None
    vector = injective.VECTOR_BYTES // max(widths)
    while vector > 1 and (
        length % (vector * machine.warp) or not all(_moves(b, vector, n) for b, n in along)
    ):
        vector //= 2
    lanes = machine.warp
    while lanes < machine.max_threads and length > lanes * MOST_ELEMENTS:
        lanes *= 2
    if vector < 2 or length % (lanes * vector):
        return None
    count = nest.product(list(space.extents))
    rows = max(1, 128 // lanes) if isinstance(count, int) else 1
    while rows > 1 and (count % rows or count // rows < machine.multiprocessors):
        rows //= 2
    return RegisterPlan(space, rows, length // (lanes * vector), lanes, vector)


def _owned(infos: Sequence[BlockInfo], space: RowSpace) -> bool:
    """Whether each block reads, of a row of an intermediate, only the element it works on.

    Anything else (the first element, a rotated row) belongs to another lane's registers.
    """
    for edge in row_space.edges_of(infos):
        writer, reader = infos[edge.producer], infos[edge.consumer]
        source = row_iterator(writer, space.positions[edge.producer] or ())
        if source is None or writer.kinds[source] == "R":
            continue  # one element per row, which every lane has
        target = row_iterator(reader, space.positions[edge.consumer] or ())
        if target is None:
            return False
        for dimension, index in enumerate(edge.written):
            if index.same_as(writer.iterators[source]) and not all(
                indices[dimension].same_as(reader.iterators[target]) for indices in edge.loads
            ):
                return False
    return True


def _moves(block: BlockInfo, vector: int, position: int) -> bool:
    """Whether each load is one vector or one shared element for neighbours along the row."""
    if access.conditions_of(block.node.body) or str(block.dtype) == "bool":
        return False
    around = access.Neighbours(block, vector, position)
    return around.splits and all(
        around.share(list(load.indices)) or around.are_vector(load.source, list(load.indices))
        for load in analysis.loads_of(block.node.body)
        if str(load.source.dtype) != "bool"
    )


def build(sch: s_tir.Schedule, infos: Sequence[BlockInfo], chosen: RegisterPlan) -> None:
    """One nest: (thread block, row of it, lane, step, element of the vector)."""
    left = row_nest.merge_rows(sch, infos, chosen.space, chosen.rows, "threadIdx.y")
    for block, positions, loops in zip(infos, chosen.space.positions, left, strict=True):
        handle = sch.get_sblock(block.name)
        number = row_iterator(block, positions or ())
        if not block.is_output:
            if positions is not None and len(positions) > 1:
                row_nest.flatten_rows(sch, block, positions)
            if number is not None and not block.is_reduction:
                _own_elements(sch, block, number, chosen)
            sch.set_scope(handle, 0, "local")
        if number is None:
            _, lane = sch.split(nest.fused(sch, handle, loops), factors=[None, chosen.lanes])
            sch.bind(lane, "threadIdx.x")
            continue
        _share_out(sch, block, loops, number, chosen)


def _own_elements(sch: s_tir.Schedule, block: BlockInfo, number: int, chosen: RegisterPlan) -> None:
    """Lay a row out as (steps, vector): what one lane owns of (steps, lanes, vector).

    Many elements of a row share a place in this layout, but each place exists once per thread, and
    a lane only ever touches its own elements; hence the assumption below.  (With the lanes as a
    dimension TVM would allocate the whole row per thread, because the blocks' lane loops are
    separate loops.)
    """
    iterator = block.iterators[number]
    store = sch.get(sch.get_sblock(block.name)).body
    dimension = next(
        n
        for n, index in enumerate(store.indices)
        if any(used.same_as(iterator) for used in analysis.variables_of(index))
    )
    width = chosen.vector * chosen.lanes

    def split(*indices: ir.Expr) -> list[ir.Expr]:
        at = indices[dimension]
        parts = [at // width, at % chosen.vector]
        return [*indices[:dimension], *indices[dimension + 1 :], *parts]

    handle = sch.get_sblock(block.name)
    sch.transform_layout(handle, ("write", 0), split, assume_injective_transform=True)


def _share_out(
    sch: s_tir.Schedule,
    block: BlockInfo,
    loops: list[LoopRV],
    number: int,
    chosen: RegisterPlan,
) -> None:
    handle = sch.get_sblock(block.name)
    flat = nest.fused(sch, handle, loops)
    step, lane, element = sch.split(flat, factors=[None, chosen.lanes, chosen.vector])
    sch.reorder(lane, step, element)
    sch.bind(lane, "threadIdx.x")
    injective.fetch_vectors(sch, block, step, chosen.vector, number)
    sch.unroll(step)
    sch.unroll(element)
    if block.is_output:
        store = sch.cache_write(handle, 0, "local")
        sch.reverse_compute_at(store, step)
        sch.vectorize(sch.get_loops(store)[-1])
