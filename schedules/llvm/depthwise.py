"""Depthwise convolution on CPUs: vectors of channels, the window unrolled over a row of pixels.

A task takes a few rows and one vector of channels.  Its padded input (with whatever was fused
before the padding) is a small contiguous buffer, so the taps are unrolled without a predicate
and each input vector is loaded once per row of the window for all the pixels that share it.
"""

from __future__ import annotations

from itertools import product

from tvm import s_tir, tirx
from tvm.target import Target

from ..analysis import blocks
from ..base import ScheduleRule
from .conv_stages import (
    Stages,
    inline_stages,
    keep_local,
    parallel_stage,
    split_loop,
    tile_output,
)
from .conv_structure import PER_CHANNEL, Window, epilogue_reason, find_window
from .conv_tile import divisors, vector_lanes
from .machine import Machine, machine_of

#: Scalar statements in one unrolled body; more would overflow the micro-operation cache.
_UNROLLED = 320


class DepthwiseRule(ScheduleRule):
    """2-D convolutions in which each output channel reads its own input channel, NHWC."""

    name = "llvm.depthwise"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :meth:`ScheduleRule.check`."""
        if not isinstance(func.body, s_tir.SBlockRealize):
            return "the function has no root block"
        infos = blocks(s_tir.Schedule(func))
        window = find_window(infos)
        if isinstance(window, str):
            return window
        if window.weight is None:
            return "the window reduction has no weight (pooling)"
        if window.channel_kind != PER_CHANNEL:
            return "the convolution is not depthwise"
        return epilogue_reason(infos, window.anchor)

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`.  Raises ``ValueError`` if ``check`` would decline."""
        sch = s_tir.Schedule(func)
        window = find_window(blocks(sch))
        if isinstance(window, str):
            raise ValueError(window)
        machine = machine_of(target)
        stages = inline_stages(sch, window.data)
        parallel = machine.cores > 1 and window.operations >= machine.grain * machine.lanes
        for stage in stages.first:
            parallel_stage(sch, stage, machine, parallel)
        tile_window(sch, stages, window, machine, parallel, tunable)
        return sch


def choose_task(window: Window, machine: Machine, lanes: int, staged: bool) -> tuple[int, int]:
    """(output rows, vectors of channels) of one task, by the cycles of its copy and arithmetic.

    Few rows keep the padded input in the nearest cache but copy the shared rows twice; few
    channels read an image that is larger than the second-level cache in short pieces.
    """
    best = (float("inf"), 1, 1)
    chunks = window.channels // lanes
    width = (window.width - 1) * window.strides[1] + window.taps[1]
    height = (window.height - 1) * window.strides[0] + window.taps[0]
    streamed = 4 * height * width * window.channels > machine.l2_bytes
    for rows, vectors in product(divisors(window.height), divisors(chunks)):
        elements = ((rows - 1) * window.strides[0] + window.taps[0]) * width
        copied = 2.5 * elements if staged else 0.0
        size = 4 * elements * lanes * vectors
        copied *= 1.0 if size <= machine.l1_bytes else 1.3 if 2 * size <= machine.l2_bytes else 4.0
        if streamed and vectors < chunks:
            copied *= 1.5
        arithmetic = 1.3 * rows * window.width * window.taps[0] * window.taps[1]
        tasks = window.batch * (chunks // vectors) * (window.height // rows)
        cost = -(-tasks // machine.cores) * (vectors * (arithmetic + copied) + 60.0)
        best = min(best, (cost, rows, vectors))
    return best[1], best[2]


def choose_columns(window: Window, machine: Machine) -> int:
    """Pixels of a register tile: many, so that they share input vectors, and a good divisor."""
    limit = machine.vector_registers // 2 - 2
    exact = divisors(window.width, limit)[-1]
    return exact if exact >= min(window.width, 5) else 8


def tile_window(
    sch: s_tir.Schedule,
    stages: Stages,
    window: Window,
    machine: Machine,
    parallel: bool,
    tunable: bool,
) -> None:
    """Tile a per-channel window reduction (with or without weights) and attach its stages."""
    anchor, outputs = stages.anchor, keep_local(sch, stages)
    lanes = vector_lanes(window.channels, machine)
    rows, vectors = choose_task(window, machine, lanes, stages.data is not None)
    columns = choose_columns(window, machine)
    batch, row, column, channel, *taps = sch.get_loops(anchor)
    row_task, row = split_loop(sch, row, [rows], window.height, tunable)
    column_outer, column = split_loop(sch, column, [columns], 14, tunable)
    channel_task, vector, lane = sch.split(channel, [None, vectors, lanes])
    sch.reorder(batch, row_task, channel_task, vector, row, column_outer, *taps, column, lane)
    task = sch.fuse(batch, row_task, channel_task)
    for output in outputs:
        sch.reverse_compute_at(output, column_outer, preserve_unit_loops=True)
    if stages.data is not None:
        sch.compute_at(stages.data, task, preserve_unit_loops=True)
        _, stage_lane = sch.split(sch.get_loops(stages.data)[-1], [None, lanes])
        sch.vectorize(stage_lane)
    if parallel:
        sch.parallel(task)
    sch.unroll(column)
    unrolled = columns
    for loop, extent in ((taps[1], window.taps[1]), (taps[0], window.taps[0])):
        unrolled *= extent
        if unrolled <= _UNROLLED:
            sch.unroll(loop)
    sch.vectorize(lane)
    for output in outputs:
        tile_output(sch, output, lanes)
    sch.decompose_reduction(anchor, taps[0])
