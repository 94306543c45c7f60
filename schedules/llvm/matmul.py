"""One kernel for a matrix multiplication with everything fused around it, on CPUs.

The multiplication is tiled for registers (see ``microkernel``).  Injective producers are inlined
into its operand reads, or computed before it where they are dear (see ``operands``); the epilogue
(bias, activation, residual, reshape) runs on the finished tile, vectorised, before the next tile
starts.  Ragged extents are handled by moving the last tile inwards (see ``edges``).
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from .. import analysis
from ..base import ScheduleRule
from .dot import dot_loops, dot_tile
from .indices import simplify_indices
from .machine import machine_of
from .matmul_loops import (
    attach_epilogue,
    finish_operands,
    stream_loops,
    stream_tile,
    tile_loops,
    with_edges,
)
from .matmul_nest import find_nest
from .microkernel import ranked_tiles

_SUM_DTYPES = ("float32", "float64", "int32")


class MatmulRule(ScheduleRule):
    """Exactly one matrix multiplication, plus injective blocks before and after it."""

    name = "llvm.matmul"

    def check(self, func: tirx.PrimFunc, target: Target) -> str | None:
        """See ``ScheduleRule.check``."""
        if target.kind.name != "llvm":
            return f"the target is {target.kind.name}, not llvm"
        infos = analysis.blocks(s_tir.Schedule(func))
        for info in infos:
            if info.store is None or "O" in info.kinds:
                return f"block {info.name} is neither a map nor a reduction of one statement"
        reductions = analysis.anchors(infos)
        if len(reductions) != 1:
            return f"the function has {len(reductions)} reductions; this rule takes one"
        form = analysis.contraction_of(reductions[0])
        if isinstance(form, str):
            return form
        if not form.columns:
            return f"{reductions[0].name} multiplies two vectors"
        if reductions[0].dtype not in _SUM_DTYPES:
            return f"{reductions[0].name} sums in {reductions[0].dtype}"
        return None

    def schedule(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule:
        """See ``ScheduleRule.schedule``; the choices are fixed, ``tunable`` or not."""
        machine = machine_of(target)
        simple = simplify_indices(func)
        schedule = s_tir.Schedule(simple)
        nest = find_nest(schedule)
        lanes = machine.lanes_of(nest.anchor.dtype)
        choices = [(tile_loops, tile) for tile in ranked_tiles(nest.problem, machine, lanes)]
        if nest.operands.along_reduction:
            special, build_special = dot_tile(nest.problem, machine, lanes), dot_loops
        elif nest.operands.panel is None:
            special, build_special = stream_tile(nest.problem, machine, lanes), stream_loops
        else:
            special = None
        if special is not None:
            choices.insert(0, (build_special, special))
        for build, tile in choices:
            attempt = schedule.copy()
            loops = build(attempt, nest, tile, machine)
            if attach_epilogue(attempt, nest, tile, loops):
                break
        else:
            # The epilogue cuts the result across every tile: it gets a loop nest of its own.
            build, tile = choices[0]
            attempt = schedule
            loops = build(attempt, nest, tile, machine)
        finish_operands(attempt, nest, tile, loops, machine)
        return with_edges(attempt, nest, tile, loops)
