"""Window pooling on CUDA, NCHW and NHWC, with its producers and epilogue in the same thread."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from .. import analysis
from ..base import ScheduleRule
from . import nest, per_output
from .machine import Machine

LONGEST_WINDOW = 256
"""Elements per window above which a row kernel with several threads per output is better."""


class PoolRule(ScheduleRule):
    """Reductions over a moving window of one operand: max, average and sum pooling."""

    name = "cuda.pool"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """Decline what is not one short window reduction per output."""
        reason = nest.plain_blocks(func)
        if reason is not None:
            return reason
        infos = analysis.blocks(nest.simplified(nest.fresh_schedule(func)))
        for block in analysis.anchors(infos):
            if not per_output.window_iterators(block):
                return f"reduction {block.name} has no moving window"
            operands = [
                load
                for load in analysis.loads_of(block.node.body)
                if not load.source.same_as(block.writes[0])
            ]
            if len(operands) != 1:
                return f"reduction {block.name} reads {len(operands)} operands; pooling reads one"
            length = nest.product(
                [e for e, kind in zip(block.extents, block.kinds, strict=True) if kind == "R"]
            )
            if not isinstance(length, int) or length > LONGEST_WINDOW:
                return f"the window of {block.name} has {length} elements; at most {LONGEST_WINDOW}"
        return per_output.reason_against(func)

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :meth:`ScheduleRule.schedule`."""
        return per_output.schedule(func, Machine.of(target))
