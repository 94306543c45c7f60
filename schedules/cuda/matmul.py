"""The rule for matrix multiplications with any injective producers and consumers."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from .. import analysis
from ..base import ScheduleRule
from . import contraction as contractions
from . import normal_form, tensor_core
from .contraction import Contraction
from .gemv import choose_split, orient, schedule_gemv
from .machine import Machine
from .matmul_simt import choose_tile, schedule_simt

SHALLOW = 64
"""A reduction of fewer elements gives the threads of a block reduction too little to do."""


class MatmulRule(ScheduleRule):
    """One kernel of a matrix multiplication, its producers and its epilogue.

    At most eight rows (or columns) go to the block reduction of ``gemv``; 16-bit operands with a
    float32 accumulator go to the tensor cores, all else to tiles on the CUDA cores.
    """

    name = "cuda.matmul"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See :class:`ScheduleRule`; nothing is mutated."""
        schedule = s_tir.Schedule(func)
        found = contractions.find(analysis.blocks(schedule))
        if isinstance(found, str):
            return found
        if not found.is_matmul:
            return "an operand is not indexed by plain iterators; this is a convolution"
        return obstacle(schedule, found)

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See :class:`ScheduleRule`."""
        schedule = s_tir.Schedule(func)
        found = contractions.find(analysis.blocks(schedule))
        if isinstance(found, str):
            raise ValueError(found)
        return schedule_contraction(schedule, found, Machine.of(target))


def obstacle(schedule: s_tir.Schedule, contraction: Contraction) -> str | None:
    """Why no kernel can be made of a contraction; ``schedule`` is used up by the attempt."""
    if contraction.extent("I") == contraction.extent("J") == 1:
        return "each batch entry is a dot product"
    few_rows = orient(contraction)
    if isinstance(few_rows, str) and 1 in (contraction.extent("I"), contraction.extent("J")):
        return few_rows
    return normal_form.obstacle(schedule, contraction)


def schedule_contraction(
    schedule: s_tir.Schedule, contraction: Contraction, machine: Machine
) -> s_tir.Schedule:
    """Schedule a group around one contraction as one kernel."""
    few_rows = orient(contraction)
    rows, columns, depth = (contraction.extent(role) for role in "IJK")
    shallow = depth is not None and depth < SHALLOW and 1 not in (rows, columns)
    if isinstance(few_rows, str) or shallow:
        warp_tile = tensor_core.choose_tile(contraction, machine)
        if not isinstance(warp_tile, str):
            return tensor_core.schedule_tensor_core(schedule, contraction, warp_tile)
        return schedule_simt(schedule, contraction, choose_tile(contraction, machine))
    split = choose_split(schedule.copy(), few_rows, machine)
    return schedule_gemv(schedule, few_rows, split)
