"""The schedule of one attention kernel, once ``attention`` has separated its stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import DataType, s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from .. import analysis
from .contraction import Contraction
from .machine import STATIC_SHARED_BYTES, Machine
from .matmul_simt import VECTOR, contiguous_axis, vectorize_stores

if TYPE_CHECKING:
    from .attention import Stages

LANES = 32
"""Threads along threadIdx.x: one warp reduces one row."""


@dataclass(frozen=True)
class AttentionTile:
    """A tile of ``queries``, in ``warps`` warps, that takes ``keys`` keys at a time.

    ``width`` is what the columns of the output are padded to.
    """

    queries: int
    keys: int
    width: int
    warps: int
    scope: str

    @property
    def across(self) -> int:
        """Threads along the columns of a product; each has four rows."""
        return self.warps * LANES // (self.queries // VECTOR)


def choose_tile(scores: Contraction, values: Contraction, machine: Machine) -> AttentionTile | str:
    """The most queries per block that still give every multiprocessor one, or why none fit."""
    extents = [*(scores.extent(role) for role in "SIJK"), values.extent("J")]
    known = [extent for extent in extents if extent is not None]
    if len(known) < len(extents):
        return "attention with a symbolic shape"
    batch, queries, keys, depth, width = known
    if 1 in (queries, keys, width):
        return "attention with one query, one key or one column"
    options = []
    for rows, warps in ((64, 8), (32, 8), (32, 4), (16, 4)):
        across = warps * LANES // (rows // VECTOR)
        chunk = min(VECTOR * across, -(-keys // across) * across)
        padded = -(-width // across) * across
        total = -(-keys // chunk) * chunk
        # The two tiles of queries by keys, the operands' tiles with their padding, and the rows.
        need = 4 * (2 * rows * total + depth * (rows + chunk) + chunk * padded + 8 * rows)
        need += 4 * VECTOR * 2 * (depth + rows)
        if need <= machine.shared_limit:
            blocks = batch * -(-queries // rows)
            scope = "shared" if need <= STATIC_SHARED_BYTES else "shared.dyn"
            options.append(
                (min(blocks, machine.multiprocessors), rows, chunk, padded, warps, scope)
            )
        least = need
    if not options:
        return (
            f"the score tile of 16 queries by {keys} keys needs {least} bytes of shared memory; "
            f"the target has {machine.shared_limit}"
        )
    _, rows, chunk, padded, warps, scope = max(options)
    return AttentionTile(rows, chunk, padded, warps, scope)


def schedule_tile(schedule: s_tir.Schedule, stages: Stages, tile: AttentionTile) -> s_tir.Schedule:
    """Place every stage under one block of threads per batch entry and tile of queries."""
    batch, i, j, k = schedule.get_loops(stages.mix)
    block_i, thread_i, lane_i = schedule.split(i, [None, tile.queries // VECTOR, VECTOR])
    runs = tile.width // tile.across
    thread_j, lane_j = schedule.split(j, [None, runs])
    outer_k, inner_k, lane_k = schedule.split(k, [None, tile.keys // VECTOR, VECTOR])
    schedule.reorder(batch, block_i, thread_i, thread_j, outer_k, inner_k, lane_k, lane_i, lane_j)
    grid = schedule.fuse(batch, block_i)
    schedule.bind(grid, "blockIdx.x")
    threads = bind_threads(schedule, schedule.fuse(thread_i, thread_j), tile.warps)
    schedule.compute_at(stages.value, outer_k, preserve_unit_loops=True)
    fetch(schedule, stages.value, tile.warps)
    hold(schedule, stages.mix, stages.weight, inner_k)
    hold(schedule, stages.mix, stages.value, lane_k)
    for output in stages.outputs:
        schedule.reverse_compute_at(output, threads, preserve_unit_loops=True)
        vectorize_stores(schedule, output)
    schedule.decompose_reduction(stages.mix, outer_k)

    schedule.compute_at(stages.weight, grid, preserve_unit_loops=True)
    rowwise(schedule, stages.weight, tile.warps)
    serial = [place_row(schedule, row, grid, tile.warps) for row in reversed(stages.rows)]
    place_scores(schedule, stages, tile, grid)
    for loop in serial:
        # Not before: more threads than rows would make the scores look read past the tile.
        if loop is not None:
            bind_threads(schedule, loop, tile.warps)
    schedule.annotate(grid, "pragma_auto_unroll_max_step", 256)
    schedule.annotate(grid, "pragma_unroll_explicit", 0)
    return schedule


def hold(schedule: s_tir.Schedule, product: SBlockRV, operand: SBlockRV, loop: LoopRV) -> None:
    """Read an operand's tile into registers at ``loop``, in vectors."""
    source = schedule.get(operand).writes[0].source
    reads = [region.source for region in schedule.get(product).reads]
    position = next(at for at, buffer in enumerate(reads) if buffer.same_as(source))
    registers = schedule.cache_read(product, position, "local")
    schedule.compute_at(registers, loop, preserve_unit_loops=True)
    last = schedule.get_loops(registers)[-1]
    if analysis.static(schedule.get(last).extent) in (2, VECTOR):
        schedule.vectorize(last)


def bind_threads(schedule: s_tir.Schedule, fused: LoopRV, warps: int) -> LoopRV:
    """Spread a loop over ``warps`` x 32 threads; returns the innermost loop."""
    _, y, x = schedule.split(fused, [None, warps, LANES])
    schedule.bind(y, "threadIdx.y")
    schedule.bind(x, "threadIdx.x")
    return x


def rowwise(schedule: s_tir.Schedule, block: SBlockRV, warps: int) -> None:
    """One warp per row at a time, its lanes along the row."""
    i, j = schedule.get_loops(block)[-2:]
    _, y = schedule.split(i, [None, warps])
    _, x = schedule.split(j, [None, LANES])
    schedule.bind(y, "threadIdx.y")
    schedule.bind(x, "threadIdx.x")


def place_row(schedule: s_tir.Schedule, row: SBlockRV, grid: LoopRV, warps: int) -> LoopRV | None:
    """Reduce rows by warps, or, where elements are narrow, one thread per row.

    Returns the loop over rows that is still to be bound to threads, if any.

    TVM reduces only elements of 32 bits and more by warp shuffles.  For others it prints a tree
    in shared memory whose last steps have no barrier: a race where the threads of a warp advance
    independently.
    """
    if DataType(schedule.get(row).writes[0].source.dtype).bits >= 32:
        schedule.compute_at(row, grid, preserve_unit_loops=True)
        rowwise(schedule, row, warps)
        return None
    result = schedule.cache_write(row, 0, "local")
    schedule.compute_at(result, grid, preserve_unit_loops=True)
    rows = schedule.fuse(*schedule.get_loops(result)[1:])
    schedule.compute_at(row, rows, preserve_unit_loops=True)
    return rows


def fetch(schedule: s_tir.Schedule, block: SBlockRV, warps: int) -> None:
    """Share a fetch ``(s, k, x)`` between all threads, along the contiguous axis."""
    along, vector = contiguous_axis(schedule.get(block))
    k, other = schedule.get_loops(block)[-2:]
    if along == 1:
        schedule.reorder(other, k)
        schedule.storage_align(block, 0, -2, 32, VECTOR)
    sizes = [analysis.static(schedule.get(loop).extent) or 1 for loop in (k, other)]
    while vector > 1 and sizes[0] * sizes[1] % (warps * LANES * vector):
        vector //= 2
    fused = schedule.fuse(other, k) if along == 1 else schedule.fuse(k, other)
    _, y, x, lanes = schedule.split(fused, [None, warps, LANES, vector])
    schedule.bind(y, "threadIdx.y")
    schedule.bind(x, "threadIdx.x")
    if vector > 1:
        schedule.vectorize(lanes)


def place_scores(
    schedule: s_tir.Schedule, stages: Stages, tile: AttentionTile, grid: LoopRV
) -> None:
    """Compute the score tile chunk by chunk: the product in registers, then the score from it."""
    schedule.compute_at(stages.score, grid, preserve_unit_loops=True)
    i, j = schedule.get_loops(stages.score)[-2:]
    runs = tile.keys // tile.across
    thread_i, lane_i = schedule.split(i, [None, VECTOR])
    chunk, thread_j, lane_j = schedule.split(j, [None, tile.across, runs])
    schedule.reorder(chunk, thread_i, thread_j, lane_i, lane_j)
    threads = bind_threads(schedule, schedule.fuse(thread_i, thread_j), tile.warps)
    schedule.compute_at(stages.product, threads, preserve_unit_loops=True)
    own_i, own_j, k = schedule.get_loops(stages.product)[-3:]
    schedule.reorder(k, own_i, own_j)
    schedule.compute_at(stages.key, chunk, preserve_unit_loops=True)
    fetch(schedule, stages.key, tile.warps)
    schedule.compute_at(stages.query, grid, preserve_unit_loops=True)
    fetch(schedule, stages.query, tile.warps)
    hold(schedule, stages.product, stages.query, k)
    hold(schedule, stages.product, stages.key, k)
    schedule.decompose_reduction(stages.product, k)
    # Rows one vector apart in the banks: a thread per row, or four rows per thread, then differ.
    schedule.storage_align(stages.score, 0, -2, 32, VECTOR)
