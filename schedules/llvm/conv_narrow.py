"""Convolutions with one to three output channels: vectors along the input channels instead.

There are too few output channels to fill a vector, so each lane sums its share of the input
channels for several pixels at once, and the lanes are added up at the end.  The weight is first
copied with its input channels innermost, so that both operands are read in whole vectors.
"""

from __future__ import annotations

from tvm import s_tir

from .conv_stages import Stages, keep_local, vectorise_last
from .conv_structure import DENSE, Window
from .conv_tile import divisors, vector_lanes
from .machine import Machine

_NARROW = 4


def is_narrow(window: Window, machine: Machine) -> bool:
    """Whether vectors of output channels would be nearly empty and of input channels would not."""
    return (
        window.channel_kind == DENSE
        and window.channels < _NARROW
        and 4 <= vector_lanes(window.depth, machine) <= machine.lanes
    )


def tile_narrow(
    sch: s_tir.Schedule, stages: Stages, window: Window, machine: Machine, parallel: bool
) -> None:
    """Tile a narrow convolution and attach its stages.

    Before::

        for y, x, f, ry, rx, rc:  out[y, x, f] += data[y + ry, x + rx, rc] * w[ry, rx, rc, f]

    After::

        for y, x / 8:
            for ry, rx, rc / 16:  lanes[x % 8, f, 0:16] += data[..., rc : rc + 16] * w[...]
            out[y, x : x + 8, f] = the sum of lanes
    """
    anchor = stages.anchor
    outputs = keep_local(sch, stages)
    lanes = vector_lanes(window.depth, machine)
    operand = next(
        index
        for index, region in enumerate(sch.get(anchor).reads)
        if window.weight is not None and region.source.same_as(window.weight)
    )
    packed = sch.cache_read(anchor, operand, "global")
    sch.transform_layout(packed, ("write", 0), lambda y, x, inner, f: [y, x, f, inner])
    _, lane = sch.split(sch.get_loops(anchor)[-1], [None, lanes])
    partial = sch.rfactor(lane, 4)
    sch.set_scope(partial, 0, "local")

    batch, row, column, channel, lane = sch.get_loops(anchor)
    columns = divisors(window.width, machine.vector_registers // 2 // window.channels)[-1]
    if columns < min(window.width, 4):
        columns = 8
    rows = _rows_per_task(window, machine)
    row_task, row = sch.split(row, [None, rows])
    column_outer, column = sch.split(column, [None, columns])
    sch.reorder(batch, row_task, row, column_outer, column, channel, lane)
    task = sch.fuse(batch, row_task)
    sch.compute_at(partial, column_outer, preserve_unit_loops=True)
    for output in outputs:
        sch.reverse_compute_at(output, column_outer, preserve_unit_loops=True)
    if stages.data is not None:
        sch.compute_at(stages.data, task, preserve_unit_loops=True)
        vectorise_last(sch, stages.data, machine)
    if parallel:
        sch.parallel(task)
    for loop in (column, channel, lane):
        sch.unroll(loop)
    part, _, _, wide, narrow, row_tap, column_tap, inner = sch.get_loops(partial)[-8:]
    sch.reorder(row_tap, column_tap, inner, wide, narrow, part)
    sch.unroll(wide)
    sch.unroll(narrow)
    sch.vectorize(part)
    for output in outputs:
        *_, wide, narrow = sch.get_loops(output)
        if window.channels == 1:
            sch.vectorize(sch.fuse(wide, narrow))
        else:
            sch.unroll(wide)
            sch.unroll(narrow)
    sch.decompose_reduction(partial, row_tap)


def _rows_per_task(window: Window, machine: Machine) -> int:
    """As many rows as leave every core a task and keep the input rows in half the cache."""
    row_bytes = 4 * window.width * window.strides[1] * window.depth * window.strides[0]
    fitting = max(1, machine.l2_bytes // 2 // max(1, row_bytes))
    shared = max(1, window.batch * window.height // machine.cores)
    return divisors(window.height, min(fitting, shared))[-1]
