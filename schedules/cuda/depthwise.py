"""Depthwise convolution on CUDA, NCHW and NHWC, with its producers and epilogue in registers."""

from __future__ import annotations

from tvm import ir, s_tir, tirx
from tvm.target import Target

from .. import analysis
from ..analysis import BlockInfo
from ..base import ScheduleRule
from . import nest, per_output
from .machine import Machine

LONGEST_WINDOW = 256


class DepthwiseRule(ScheduleRule):
    """Window reductions of a product whose weight has no iterator of its own.

    In a depthwise convolution every spatial iterator of the weight (the channel) indexes the data
    too; an ordinary convolution has an output channel that only the weight knows.
    """

    name = "cuda.depthwise"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """Decline what is not one depthwise convolution."""
        reason = nest.plain_blocks(func)
        if reason is not None:
            return reason
        reductions = analysis.anchors(analysis.blocks(nest.simplified(nest.fresh_schedule(func))))
        if len(reductions) != 1:
            return f"the group has {len(reductions)} reductions; a depthwise convolution has one"
        reason = _not_depthwise(reductions[0])
        return reason if reason is not None else per_output.reason_against(func)

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        return per_output.schedule(func, Machine.of(target))


def _not_depthwise(block: BlockInfo) -> str | None:
    windows = per_output.window_iterators(block)
    if not windows:
        return f"reduction {block.name} has no moving window"
    loads = [
        load
        for load in analysis.loads_of(block.node.body)
        if not load.source.same_as(block.writes[0])
    ]
    if len(loads) != 2:
        return f"reduction {block.name} reads {len(loads)} operands; a convolution reads two"
    length = nest.product(
        [e for e, kind in zip(block.extents, block.kinds, strict=True) if kind == "R"]
    )
    if not isinstance(length, int) or length > LONGEST_WINDOW:
        return f"the window of {block.name} has {length} elements; at most {LONGEST_WINDOW}"
    spatial = [v for v, kind in zip(block.iterators, block.kinds, strict=True) if kind == "S"]
    own = [[v for v in spatial if _indexes(load, v)] for load in loads]
    data, weight = (own[0], own[1]) if len(own[0]) >= len(own[1]) else (own[1], own[0])
    if not weight:
        return f"the weight of {block.name} has no channel"
    if any(not any(v.same_as(other) for other in data) for v in weight):
        return f"the weight of {block.name} has an output channel that the data lacks"
    return None


def _indexes(load: ir.TensorLoad, iterator: ir.Var) -> bool:
    return any(
        used.same_as(iterator) for index in load.indices for used in analysis.variables_of(index)
    )
