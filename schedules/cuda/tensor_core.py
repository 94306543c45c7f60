"""Matrix multiplication on the tensor cores: fp16 operands, fp32 accumulation.

Uses TVM's warp-level ``wmma`` intrinsics (16 x 16 x 16), which exist for fp16 but not for bf16.
A block tile goes through shared memory into fragments; the accumulators go back through shared
memory, so that the epilogue runs on ordinary elements, whatever the fragments' layout.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from .contraction import Contraction
from .machine import Machine
from .matmul_simt import contiguous_axis
from .normal_form import normalise

FRAGMENT = 16
LANES = 32
# Operands and accumulators live in different scopes: TVM's storage planner gives buffers of one
# scope the same storage even where their element types differ, and the intrinsics' access
# pointers then do not build ("element type must match the source buffer").
OPERANDS, ACCUMULATORS = "shared.dyn", "shared"


@dataclass(frozen=True)
class WarpTile:
    """``warp_rows x warp_columns`` warps, each of ``rows x columns`` fragments; ``depth`` fragments
    along the reduction per fetch."""

    warp_rows: int
    warp_columns: int
    rows: int
    columns: int
    depth: int

    @property
    def padding(self) -> tuple[int, int, int]:
        """What rows, columns and reduction are padded to."""
        return (
            self.warp_rows * self.rows * FRAGMENT,
            self.warp_columns * self.columns * FRAGMENT,
            self.depth * FRAGMENT,
        )

    @property
    def shared_bytes(self) -> tuple[int, int]:
        """Shared memory of the two operands' tiles, and of the accumulators; rows padded by 8."""
        rows, columns, depth = self.padding
        operands = 2 * (rows * (depth + 8) + depth * (columns + 8))
        return operands, 4 * rows * (columns + 8)


TILES = (
    WarpTile(2, 2, 4, 2, 2),
    WarpTile(2, 2, 2, 2, 2),
    WarpTile(2, 2, 1, 1, 4),
)


def choose_tile(contraction: Contraction, machine: Machine) -> WarpTile | str:
    """The largest tile that fills the machine, or why the tensor cores do not apply."""
    block = contraction.block
    operands = [block.node.reads[at].source for at in (contraction.left, contraction.right)]
    dtypes = {str(buffer.dtype) for buffer in operands}
    if dtypes != {"float16"}:
        return f"the tensor-core kernel takes fp16 operands, not {' and '.join(sorted(dtypes))}"
    if block.dtype != "float32":
        return f"the accumulator is {block.dtype}; the tensor-core kernel accumulates in float32"
    if machine.arch < 70:
        return f"sm_{machine.arch} has no tensor cores"
    batch, rows, columns, depth = (
        contraction.extent(role) or (1 if role == "S" else 2048) for role in "SIJK"
    )
    if min(rows, columns, depth) < FRAGMENT:
        return "an extent is below one fragment of 16"
    for tile in TILES:
        high, wide, _ = tile.padding
        blocks = batch * -(-rows // high) * -(-columns // wide)
        if sum(tile.shared_bytes) <= machine.shared_limit and (
            blocks >= machine.multiprocessors or tile is TILES[-1]
        ):
            return tile
    return "the accumulators do not fit the shared memory"


def schedule_tensor_core(
    schedule: s_tir.Schedule, contraction: Contraction, tile: WarpTile
) -> s_tir.Schedule:
    """Schedule the group as one kernel; raises what TVM raises if it cannot."""
    get_wmma_intrin_group = _intrinsics()
    dtype = str(contraction.block.node.reads[contraction.left].source.dtype)
    group = get_wmma_intrin_group(OPERANDS, ACCUMULATORS, dtype, "float32", trans_b=False)
    normal = normalise(schedule, contraction, tile.padding, "SIK", OPERANDS)
    main = normal.main
    warps = tile.warp_rows * tile.warp_columns
    store = schedule.cache_write(main, 0, "wmma.accumulator")
    schedule.set_scope(store, 0, ACCUMULATORS)

    batch, i, j, k = schedule.get_loops(main)
    block_i, warp_i, own_i, lane_i = schedule.split(i, [None, tile.warp_rows, tile.rows, FRAGMENT])
    block_j, warp_j, own_j, lane_j = schedule.split(
        j, [None, tile.warp_columns, tile.columns, FRAGMENT]
    )
    outer_k, inner_k, lane_k = schedule.split(k, [None, tile.depth, FRAGMENT])
    schedule.reorder(
        batch, block_j, block_i, warp_i, warp_j, outer_k, inner_k, own_i, own_j,
        lane_i, lane_j, lane_k,
    )  # fmt: skip
    outer = schedule.blockize(lane_i)
    grid = schedule.fuse(batch, block_j, block_i)
    schedule.bind(grid, "blockIdx.x")
    warp = schedule.fuse(warp_i, warp_j)
    schedule.bind(warp, "threadIdx.y")
    for fetch in (normal.left, normal.right):
        schedule.compute_at(fetch, outer_k, preserve_unit_loops=True)
        fetch_half(schedule, fetch, warps)
    for fetch, scope, name in (
        (normal.left, "wmma.matrix_a", "load_a"),
        (normal.right, "wmma.matrix_b", "load_b"),
    ):
        buffer = schedule.get(fetch).writes[0].source
        position = next(
            at
            for at, region in enumerate(schedule.get(outer).reads)
            if region.source.same_as(buffer)
        )
        fragment = schedule.cache_read(outer, position, scope)
        schedule.compute_at(fragment, inner_k, preserve_unit_loops=True)
        tensorize_tiles(schedule, fragment, group[name])
    schedule.reverse_compute_at(store, warp, preserve_unit_loops=True)
    schedule.storage_align(store, 0, -2, 16, 8)
    for output in normal.outputs:
        schedule.reverse_compute_at(output, grid, preserve_unit_loops=True)
        spread_output(schedule, output, warps)
    start = schedule.decompose_reduction(outer, outer_k)
    tensorize_tiles(schedule, store, group["store"])
    schedule.tensorize(schedule.get_loops(schedule.get_child_blocks(start)[0])[-2], group["init"])
    schedule.tensorize(schedule.get_loops(main)[-3], group["compute"])
    return schedule


def _intrinsics() -> Callable[..., dict[str, str]]:
    """TVM's lookup of wmma intrinsics, registered on first use.

    TVM parses some hundred functions to register them.  For each it asks ``inspect`` for the
    function's module, which walks all loaded modules: with torch loaded, a minute in all.  The
    answer only selects a loader for the source file, so it is skipped meanwhile.
    """
    search = inspect.getmodule
    inspect.getmodule = lambda *_, **__: None
    try:
        module = importlib.import_module("tvm.s_tir.tensor_intrin.cuda")
    finally:
        inspect.getmodule = search
    return module.get_wmma_intrin_group


def tensorize_tiles(schedule: s_tir.Schedule, block: SBlockRV, intrinsic: str) -> None:
    """Cut the two innermost loops of a copy into fragments, and replace each by an intrinsic."""
    i, j = schedule.get_loops(block)[-2:]
    outer_i, inner_i = schedule.split(i, [None, FRAGMENT])
    outer_j, inner_j = schedule.split(j, [None, FRAGMENT])
    schedule.reorder(outer_i, outer_j, inner_i, inner_j)
    schedule.unroll(outer_i)
    schedule.unroll(outer_j)
    schedule.tensorize(inner_i, intrinsic)


def fetch_half(schedule: s_tir.Schedule, block: SBlockRV, warps: int) -> None:
    """Share a fetch of 16-bit elements between all threads, along its contiguous axis."""
    along, vector = contiguous_axis(schedule.get(block))
    first, last = schedule.get_loops(block)[-2:]
    schedule.storage_align(block, 0, -2, 16, 8)
    if along == len(schedule.get(block).iter_vars) - 2:
        schedule.reorder(last, first)
        fused = schedule.fuse(last, first)
        vector = 1
    else:
        fused = schedule.fuse(first, last)
    _, y, x, lanes = schedule.split(fused, [None, warps, LANES, vector])
    schedule.bind(y, "threadIdx.y")
    schedule.bind(x, "threadIdx.x")
    if vector > 1:
        schedule.vectorize(lanes)


def spread_output(schedule: s_tir.Schedule, output: SBlockRV, warps: int) -> None:
    """Share an output's tile between all threads; neighbours take neighbouring columns."""
    fused = schedule.fuse(*schedule.get_loops(output)[-2:])
    _, y, x = schedule.split(fused, [None, warps, LANES])
    schedule.bind(y, "threadIdx.y")
    schedule.bind(x, "threadIdx.x")
