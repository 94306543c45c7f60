"""Tiled matrix multiplication on the CUDA cores, with the group's other operators in its kernel.

The schedule is the usual three-level tiling: a block tile fetched through shared memory, a thread
tile in registers, and vectors of four.  A thread's rows (and columns) come in runs of four that
are ``threads * 4`` apart, so that a warp reads shared memory without bank conflicts.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, sym, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx.expr import Expr

from .. import analysis
from .contraction import Contraction
from .machine import Machine
from .normal_form import normalise

VECTOR = 4
FETCH_LATENCY = 700
"""Cycles from the first load of a tile to its use: global memory, shared memory, two barriers."""
_ISSUED_THREADS = 128
"""Threads that a multiprocessor issues one instruction for per cycle: four schedulers."""


@dataclass(frozen=True)
class Tile:
    """A block of ``rows x columns`` results by ``thread_rows x thread_columns`` threads.

    ``depth`` is how far along the reduction one fetch reaches.
    """

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    depth: int

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.thread_rows * self.thread_columns

    @property
    def results(self) -> tuple[int, int]:
        """Rows and columns per thread."""
        return self.rows // self.thread_rows, self.columns // self.thread_columns

    @property
    def issue_slots(self) -> int:
        """Instructions per thread and element of the reduction: products and vector reads."""
        rows, columns = self.results
        return rows * columns + 2 * (rows + columns) // VECTOR

    @property
    def resident(self) -> int:
        """Blocks that share one multiprocessor, by registers: 65536, about twice the results."""
        rows, columns = self.results
        return max(1, min(16, 65536 // (self.threads * (2 * rows * columns + 32))))


# Largest first.  Each thread makes 64, 32 or 16 results.
TILES = (
    Tile(128, 128, 16, 16, 8),
    Tile(128, 64, 16, 16, 16),
    Tile(64, 128, 16, 16, 16),
    Tile(64, 64, 16, 16, 16),
    Tile(64, 32, 16, 8, 16),
    Tile(32, 64, 8, 16, 16),
    Tile(32, 32, 8, 8, 32),
    Tile(16, 64, 4, 16, 32),
    Tile(64, 16, 16, 4, 32),
    Tile(16, 32, 4, 8, 32),
    Tile(32, 16, 8, 4, 32),
    Tile(16, 16, 4, 4, 32),
)


def choose_tile(contraction: Contraction, machine: Machine) -> Tile:
    """The tile with the least estimated time; a symbolic extent counts as large.

    The estimate walks through the grid in rounds of resident blocks.  One step of a round, the
    fetch and use of ``depth`` elements, takes as long as the instructions of all its blocks, or
    as long as the fetch's latency and then the instructions of one block: a small grid is bound
    by latency, a large one by instructions.
    """
    batch, rows, columns, depth = (
        contraction.extent(role) or (1 if role == "S" else 2048) for role in "SIJK"
    )

    def estimate(tile: Tile) -> tuple[float, int]:
        blocks = batch * -(-rows // tile.rows) * -(-columns // tile.columns)
        rounds = -(-blocks // (machine.multiprocessors * tile.resident))
        together = min(tile.resident, -(-blocks // machine.multiprocessors))
        own = tile.depth * tile.issue_slots * -(-tile.threads // _ISSUED_THREADS)
        step = max(own * together, FETCH_LATENCY + own)
        return rounds * -(-depth // tile.depth) * step, -tile.rows * tile.columns

    return min(TILES, key=estimate)


def schedule_simt(schedule: s_tir.Schedule, contraction: Contraction, tile: Tile) -> s_tir.Schedule:
    """Schedule the group as one kernel of ``tile``; raises what TVM raises if it cannot."""
    normal = normalise(schedule, contraction, (tile.rows, tile.columns, tile.depth))
    row_runs = tile.rows // (tile.thread_rows * VECTOR)
    column_runs = tile.columns // (tile.thread_columns * VECTOR)
    batch, i, j, k = schedule.get_loops(normal.main)
    block_i, run_i, thread_i, lane_i = schedule.split(i, [None, row_runs, tile.thread_rows, VECTOR])
    block_j, run_j, thread_j, lane_j = schedule.split(
        j, [None, column_runs, tile.thread_columns, VECTOR]
    )
    outer_k, inner_k = schedule.split(k, [None, tile.depth])
    schedule.reorder(
        batch, block_j, block_i, run_i, run_j, thread_i, thread_j, outer_k, inner_k, lane_i, lane_j
    )
    # Rows vary fastest over the grid: neighbouring blocks then share the columns' operand in L2.
    schedule.bind(schedule.fuse(batch, block_j, block_i), "blockIdx.x")
    schedule.bind(run_i, "vthread.y")
    schedule.bind(run_j, "vthread.x")
    schedule.bind(thread_i, "threadIdx.y")
    schedule.bind(thread_j, "threadIdx.x")
    for fetch in (normal.left, normal.right):
        schedule.compute_at(fetch, outer_k, preserve_unit_loops=True)
        fetch_cooperatively(schedule, fetch, tile.thread_rows, tile.thread_columns)
    for position in (0, 1):
        registers = schedule.cache_read(normal.main, position, "local")
        schedule.compute_at(registers, inner_k, preserve_unit_loops=True)
        schedule.vectorize(schedule.get_loops(registers)[-1])
    for output in normal.outputs:
        schedule.reverse_compute_at(output, thread_j, preserve_unit_loops=True)
        vectorize_stores(schedule, output)
    schedule.annotate(thread_j, "pragma_auto_unroll_max_step", 512)
    schedule.annotate(thread_j, "pragma_unroll_explicit", 0)
    schedule.decompose_reduction(normal.main, outer_k)
    return schedule


def fetch_cooperatively(
    schedule: s_tir.Schedule, fetch: SBlockRV, thread_rows: int, thread_columns: int
) -> None:
    """Share a fetch ``(s, k, x)`` between all threads of a block.

    Neighbouring threads take the operand's contiguous axis, as vectors where that is possible.
    """
    along, vector = contiguous_axis(schedule.get(fetch))
    loops = schedule.get_loops(fetch)
    k, other = loops[-2:]
    if along == 1:
        schedule.reorder(other, k)
        # Stores then go down a column of the tile: shift each row by one vector.
        schedule.storage_align(fetch, 0, -2, 32, VECTOR)
    size = int(schedule.get(k).extent) * int(schedule.get(other).extent)
    fused = schedule.fuse(other, k) if along == 1 else schedule.fuse(k, other)
    threads = thread_rows * thread_columns
    while vector > 1 and size % (threads * vector):
        vector //= 2
    _, rows, columns, lanes = schedule.split(fused, [None, thread_rows, thread_columns, vector])
    schedule.bind(rows, "threadIdx.y")
    schedule.bind(columns, "threadIdx.x")
    if vector > 1:
        schedule.vectorize(lanes)


def contiguous_axis(node: s_tir.SBlock) -> tuple[int, int]:
    """The block iterator along which the fetched data lie next to each other, and a vector length.

    Judged on the largest buffer that the fetch loads, by how far its address moves when one
    iterator advances by one.  The vector length is 1 where the load is guarded along that axis,
    or where rows of the buffer are not multiples of a vector.
    """
    loads = analysis.loads_of(node.body.value)
    if not loads:
        return len(node.iter_vars) - 1, 1
    largest = max(loads, key=lambda load: analysis.element_count(load.source) or 1 << 62)
    last = len(node.iter_vars) - 1
    for axis in (last, last - 1):
        variable = node.iter_vars[axis].var
        if _stride(node, largest, variable) == 1:
            return axis, VECTOR if _vectorizable(node, loads, variable) else 1
    return last, 1


def _address(load: tirx.BufferLoad) -> Expr:
    address: Expr = tirx.IntImm("int64", 0)
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        address = address * extent + index
    return address


def _stride(node: s_tir.SBlock, load: tirx.BufferLoad, variable: tirx.Var) -> int | None:
    """How far the address moves from ``variable`` = 0 to 1, the other iterators being 0."""
    variables = [iterator.var for iterator in node.iter_vars]
    map_ = tirx.IndexMap(variables, [_address(load)], None)
    zero = [tirx.IntImm("int64", 0) for _ in variables]
    one = [tirx.IntImm("int64", int(v.same_as(variable))) for v in variables]
    difference = sym.Analyzer().simplify(map_.map_indices(one)[0] - map_.map_indices(zero)[0])
    return analysis.static(difference)


def _vectorizable(node: s_tir.SBlock, loads: list[tirx.BufferLoad], variable: tirx.Var) -> bool:
    """Whether four steps of ``variable`` are one vector of every load that it moves."""
    for call in analysis.calls_of(node.body.value):
        if call.op.name in ("tirx.if_then_else",) and any(
            variable.same_as(v) for v in analysis.variables_of(call.args[0])
        ):
            return False
    for load in loads:
        if any(variable.same_as(v) for i in load.indices for v in analysis.variables_of(i)):
            width = analysis.static(load.source.shape[-1])
            if width is None or width % VECTOR:
                return False
    return True


def vectorize_stores(schedule: s_tir.Schedule, output: SBlockRV) -> None:
    """Store vectors where the output's columns are contiguous and no store is guarded."""
    loops: list[LoopRV] = schedule.get_loops(output)
    node = schedule.get(output)
    lanes = analysis.static(schedule.get(loops[-1]).extent)
    store = node.body
    variable = node.iter_vars[-1].var
    aligned = _stride(node, store_target(store), variable) == 1 and _vectorizable(
        node, [store_target(store), *analysis.loads_of(store.value)], variable
    )
    if lanes == VECTOR and aligned:
        schedule.vectorize(loops[-1])


def store_target(store: tirx.BufferStore) -> tirx.BufferLoad:
    """The place that a statement stores to, as a load of it."""
    return tirx.BufferLoad(store.buffer, store.indices)
