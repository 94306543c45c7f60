"""Order the loops of what follows a contraction by the element of its result that they read."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.sym.iter_affine_map import IterMapLevel

from .. import analysis


def iterate_over_result(schedule: s_tir.Schedule, main: SBlockRV, output: SBlockRV) -> None:
    """Order an output block's loops as ``(..., s, i, j)``, by the result element that it reads.

    Where an output visits each element of the result once (an elementwise epilogue, a reshape, a
    transpose), its iterators become ``s, i, j`` themselves.  Where it takes a slice, or visits
    each element several times (a broadcast), its loops are only reordered; the guards come from
    ``reverse_compute_at``.  Raises ``ValueError`` for any other access.
    """
    node = schedule.get(output)
    indices = result_indices(node, schedule.get(main).writes[0].source)
    if isinstance(indices, str):
        raise ValueError(indices)
    axes = [iterator.var for iterator in node.iter_vars]
    ranges = {iterator.var: iterator.dom for iterator in node.iter_vars}
    level = IterMapLevel.Bijective
    at_origin = all(_at_zero(index, axes) == 0 for index in indices)
    if at_origin and sym.detect_iter_map(indices, ranges, check_level=level).indices:
        schedule.transform_block_layout(output, tirx.IndexMap(axes, indices, None))
        return
    order = [_translated(index, axes) for index in indices if analysis.variables_of(index)]
    if None in order or len(set(order)) != len(order):
        raise ValueError(f"block {node.name_hint} gathers from the contraction: {indices}")
    loops = schedule.get_loops(output)
    free = [at for at in range(len(loops)) if at not in order]
    schedule.reorder(*(loops[at] for at in [*free, *order]))


def _at_zero(index: ir.Expr, axes: Sequence[ir.Var]) -> int | None:
    """The value of an index where all iterators are 0; ``None`` if it is symbolic."""
    zeros = [tirx.IntImm("int64", 0) for _ in axes]
    value = tirx.IndexMap(axes, [index], None).map_indices(zeros)[0]
    return analysis.static(sym.Analyzer().simplify(value))


def _translated(index: ir.Expr, axes: Sequence[ir.Var]) -> int | None:
    """The position of the axis that ``index`` is a constant offset from, else ``None``."""
    for at, axis in enumerate(axes):
        if analysis.static(sym.Analyzer().simplify(index - axis)) is not None:
            return at
    return None


def result_indices(node: s_tir.SBlock, result: ir.Var) -> list[ir.Expr] | str:
    """The one place of ``result`` that a block reads, simplified, or why there is not one."""
    analyzer = sym.Analyzer()
    for iterator in node.iter_vars:
        analyzer.bind(iterator.var, iterator.dom)
    found: list[list[ir.Expr]] = []
    for load in analysis.loads_of(node.body.value):
        if load.source.same_as(result):
            indices = [analyzer.simplify(index) for index in load.indices]
            if not any(_same(indices, known) for known in found):
                found.append(indices)
    if len(found) != 1:
        return f"block {node.name_hint} reads {len(found)} elements of the contraction at a time"
    return found[0]


def _same(left: Sequence[ir.Expr], right: Sequence[ir.Expr]) -> bool:
    return all(tvm_ffi.structural_equal(a, b) for a, b in zip(left, right, strict=True))
