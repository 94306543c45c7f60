"""Products of a few rows with a matrix: every element of the matrix is used a handful of times.

Such a kernel is bound by reading the matrix, so the matrix goes from global memory straight to
registers, and the reduction is spread over the threads of a block (a block reduction), which
gives enough loads in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from .. import analysis
from ..base import ScheduleRule
from . import contraction as contractions
from . import normal_form
from .contraction import Contraction
from .machine import STATIC_SHARED_BYTES, Machine
from .matmul_simt import contiguous_axis

MOST_ROWS = 8
THREADS = 256


@dataclass(frozen=True)
class Split:
    """How a block's threads share ``columns`` results and ``slices`` of the reduction.

    ``vector`` is the run of reduction elements that one thread takes at a time.
    """

    columns: int
    slices: int
    vector: int
    along_reduction: bool


class GemvRule(ScheduleRule):
    """One kernel of a product with at most eight rows (or columns), with all its neighbours."""

    name = "cuda.gemv"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :class:`ScheduleRule`; nothing is mutated."""
        schedule = s_tir.Schedule(func)
        found = contractions.find(analysis.blocks(schedule))
        if isinstance(found, str):
            return found
        oriented = orient(found)
        if isinstance(oriented, str):
            return oriented
        return normal_form.obstacle(schedule, oriented)

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :class:`ScheduleRule`."""
        schedule = s_tir.Schedule(func)
        found = contractions.find(analysis.blocks(schedule))
        oriented = found if isinstance(found, str) else orient(found)
        if isinstance(oriented, str):
            raise ValueError(oriented)
        split = choose_split(schedule.copy(), oriented, Machine.of(target))
        return schedule_gemv(schedule, oriented, split)


def orient(contraction: Contraction) -> Contraction | str:
    """The contraction with its small side as rows, or why it has no small side."""
    rows, columns = contraction.extent("I"), contraction.extent("J")
    if columns is None:
        return "the number of columns is symbolic"
    if rows is not None and max(rows, columns) == 1:
        return "each batch entry is a dot product"
    if columns <= MOST_ROWS and rows is not None and rows > columns:
        roles = contraction.roles.translate(str.maketrans("IJ", "JI"))
        return replace(contraction, roles=roles, left=contraction.right, right=contraction.left)
    if rows is not None and rows <= MOST_ROWS:
        return contraction
    return f"neither side of the product has at most {MOST_ROWS} rows"


def choose_split(probe: s_tir.Schedule, contraction: Contraction, machine: Machine) -> Split:
    """Give neighbouring threads the matrix's contiguous axis; split the rest to fill the machine.

    A symbolic extent counts as large.  ``probe``, a copy of the schedule that the contraction was
    found in, is used up to see how the matrix is laid out once its producers are inlined.
    """
    normal = normal_form.normalise(probe, contraction, (1, 1, 1))
    axis, vector = contiguous_axis(probe.get(normal.right))
    batch, columns, depth = (contraction.extent(role) or 4096 for role in "SJK")
    if axis == 1:
        slices = 32
        while vector > 1 and depth < slices * vector:
            vector //= 2
        return Split(_fit(columns, THREADS // slices), slices, vector, True)
    width = 32
    while width > 8 and batch * -(-columns // width) < machine.multiprocessors:
        width //= 2
    return Split(width, _fit(depth, THREADS // width), 1, False)


def _fit(extent: int, most: int) -> int:
    """The smallest power of two that covers ``extent``, at most ``most``."""
    size = 1
    while size < min(extent, most):
        size *= 2
    return min(size, most)


def schedule_gemv(
    schedule: s_tir.Schedule, contraction: Contraction, split: Split
) -> s_tir.Schedule:
    """Schedule the group as one kernel; raises what TVM raises if it cannot."""
    depth = split.slices * split.vector
    normal = normal_form.normalise(schedule, contraction, (1, split.columns, depth))
    main = normal.main
    shared = _fits_shared(schedule, normal.left)
    _, _, _, k = schedule.get_loops(main)
    _, slice_, _ = schedule.split(k, [None, split.slices, split.vector])
    partial = schedule.rfactor(slice_, 0)
    schedule.set_scope(partial, 0, "local")
    schedule.set_scope(main, 0, "shared")

    batch, row, column, slice_ = schedule.get_loops(main)
    block, thread = schedule.split(column, [None, split.columns])
    schedule.reorder(batch, block, row, thread, slice_)
    grid = schedule.fuse(batch, block)
    lanes = ("threadIdx.y", "threadIdx.x")
    if split.along_reduction:
        lanes = ("threadIdx.x", "threadIdx.y")
    schedule.bind(grid, "blockIdx.x")
    schedule.bind(slice_, lanes[0])
    schedule.bind(thread, lanes[1])

    schedule.compute_at(partial, grid, preserve_unit_loops=True)
    slice_, batch, row, thread, outer, run = schedule.get_loops(partial)[-6:]
    schedule.reorder(batch, thread, slice_, outer, row, run)
    schedule.bind(slice_, lanes[0])
    schedule.bind(thread, lanes[1])
    sizes = [split.slices, split.columns]
    y, x = sizes[lanes.index("threadIdx.y")], sizes[lanes.index("threadIdx.x")]
    _place_rows(schedule, normal.left, grid if shared else outer, shared, (y, x))
    schedule.set_scope(normal.right, 0, "local")
    schedule.compute_at(normal.right, outer, preserve_unit_loops=True)
    if split.vector > 1:
        schedule.vectorize(schedule.get_loops(normal.right)[-2])
    schedule.decompose_reduction(partial, outer)
    for output in normal.outputs:
        schedule.reverse_compute_at(output, grid, preserve_unit_loops=True)
        spread(schedule, output, 2, (y, x))
    schedule.annotate(grid, "pragma_auto_unroll_max_step", 64)
    schedule.annotate(grid, "pragma_unroll_explicit", 0)
    return schedule


def _fits_shared(schedule: s_tir.Schedule, rows: SBlockRV) -> bool:
    """Whether all rows fit the static shared memory beside the buffers of the reduction."""
    buffer = schedule.get(rows).writes[0].source
    batch = analysis.static(buffer.shape[0])
    count = analysis.element_count(buffer)
    if count is None or batch is None:
        return False
    return count // batch * 4 <= STATIC_SHARED_BYTES - 4 * 4 * THREADS * MOST_ROWS


def _place_rows(
    schedule: s_tir.Schedule,
    rows: SBlockRV,
    loop: LoopRV,
    shared: bool,
    threads: tuple[int, int],
) -> None:
    """Fetch the rows once per block into shared memory, or where they are used if too large.

    Their layout becomes ``(s, i, k)``: the threads of a warp use neighbouring ``k``.
    """
    schedule.transform_layout(rows, ("write", 0), lambda s, k, i: (s, i, k))
    if not shared:
        schedule.set_scope(rows, 0, "local")
    schedule.compute_at(rows, loop, preserve_unit_loops=True)
    *_, k, row = schedule.get_loops(rows)
    schedule.reorder(row, k)
    if shared:
        spread(schedule, rows, 2, threads)


def spread(schedule: s_tir.Schedule, block: SBlockRV, inner: int, threads: tuple[int, int]) -> None:
    """Share the ``inner`` innermost loops of a block between a block's threads ``(y, x)``."""
    fused = schedule.fuse(*schedule.get_loops(block)[-inner:])
    _, y, x = schedule.split(fused, [None, *threads])
    schedule.bind(y, "threadIdx.y")
    schedule.bind(x, "threadIdx.x")
