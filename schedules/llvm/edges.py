"""Ragged extents of a tiled loop nest, without predicates in the vector code.

Where a tile does not divide an extent, the last tile is moved inwards until it ends with the
extent, so that a few rows or columns are computed twice, with the same result::

    for t in range(ceil(E / n)):  block at t * n + i  if t * n + i < E
    -> for t in range(ceil(E / n)):  block at min(t * n, E - n) + i

That needs E >= n.  The second writer stores the very bits that the first one stored, because each
element's reduction order does not depend on the tile, so parallel tiles may overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, sym, tirx


@dataclass(frozen=True)
class Edge:
    """One tiled extent: element = sum of ``stride * index`` + offset inside the tile.

    ``parts`` are the (index expression, stride) pairs over loop variables; ``last`` is the
    element where the moved last tile starts (extent minus tile size).
    """

    parts: tuple[tuple[ir.Expr, int], ...]
    last: int


def move_last_tiles_inwards(func: tirx.PrimFunc, edges: Sequence[Edge]) -> tirx.PrimFunc:
    """Rewrite every block binding under the tile loops; predicates become true.

    Raises ``ValueError`` where a binding is not linear in the tile index, for example where the
    epilogue divides a fused index.
    """

    def rewrite(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        values = list(realize.iter_values)
        changed = False
        for edge in edges:
            for position, value in enumerate(values):
                moved = _move(value, edge)
                if moved is not None:
                    values[position] = moved
                    changed = True
        if not changed:
            return realize
        return s_tir.SBlockRealize(values, tirx.const(True, "bool"), realize.block)

    body = tvm_ffi.structural_map(func.body, (s_tir.SBlockRealize, rewrite))
    return func.with_body(body)


def _move(value: ir.Expr, edge: Edge) -> ir.Expr | None:
    """The binding with its tile start clamped, or ``None`` if it does not use the tile index."""
    fresh = [tirx.Var(f"tile{n}", "int64") for n in range(len(edge.parts))]
    opened = value
    for variable, (index, _) in zip(fresh, edge.parts, strict=True):
        opened = _replace(opened, index, variable)
    if opened.same_as(value):
        return None
    linear = sym.detect_linear_equation(opened, fresh)
    if len(linear) != len(fresh) + 1:
        raise ValueError(f"the binding {value} is not linear in a ragged tile's index")
    scale = None
    for coefficient, (_, stride) in zip(linear, edge.parts, strict=False):
        if not isinstance(coefficient, tirx.IntImm) or int(coefficient) % stride:
            raise ValueError(f"the binding {value} does not step by whole tiles")
        factor = int(coefficient) // stride
        if scale is not None and factor != scale:
            raise ValueError(f"the binding {value} mixes the tile's loops")
        scale = factor
    if not scale:
        return None
    start = sum((index * stride for index, stride in edge.parts), tirx.const(0, "int64"))
    return linear[len(fresh)] + scale * tirx.min(start, tirx.const(edge.last, "int64"))


def _replace(expression: ir.Expr, wanted: ir.Expr, variable: ir.Var) -> ir.Expr:
    """``expression`` with every occurrence of ``wanted`` replaced."""

    def swap(node: ir.Expr) -> ir.Expr:
        return variable if tvm_ffi.structural_equal(node, wanted, map_free_vars=False) else node

    return tvm_ffi.structural_map(expression, (type(wanted), swap))
