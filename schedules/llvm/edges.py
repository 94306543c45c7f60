"""Ragged extents of a tiled loop nest, without predicates in the vector code.

Where a tile does not divide a static extent, the last tile is moved inwards until it ends with the
extent, so that a few rows or columns are computed twice, with the same result::

    for t in range(ceil(E / n)):  block at t * n + i  if t * n + i < E
    -> for t in range(ceil(E / n)):  block at min(t * n, E - n) + i

That needs E >= n.  The second writer stores the very bits that the first one stored, because each
element's reduction order does not depend on the tile, so parallel tiles may overlap.

Under a symbolic extent E >= n is not known, so the tiles inside the extent get a copy of the loop
body without predicates, and only the last one tests each row::

    for t in range(ceil(E / n)):  if t < E // n: body  else: body with predicates
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from ..analysis import variables_of


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
        predicate = realize.predicate
        for edge in edges:
            for position, value in enumerate(values):
                moved = _move(value, edge)
                if moved is not None:
                    values[position] = moved
                    predicate = _without_edge(predicate, edge)
        return s_tir.SBlockRealize(values, predicate, realize.block)

    body = tvm_ffi.structural_map(func.body, (s_tir.SBlockRealize, rewrite))
    return func.with_body(body)


def separate_interior(func: tirx.PrimFunc, loop_variable: ir.Var, inside: ir.Expr) -> tirx.PrimFunc:
    """Give the iterations of one loop for which ``inside`` holds a body without predicates."""

    def strip(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        true = tirx.const(True, "bool")
        return s_tir.SBlockRealize(realize.iter_values, true, realize.block)

    def rewrite(loop: tirx.For) -> tirx.For:
        if not loop.loop_var.same_as(loop_variable):
            return loop
        interior = tvm_ffi.structural_map(loop.body, (s_tir.SBlockRealize, strip))
        interior = _with_own_variables(interior)
        body = tirx.IfThenElse(inside, interior, loop.body)
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations
        )

    body = tvm_ffi.structural_map(func.body, (tirx.For, rewrite))
    return func.with_body(body)


def _with_own_variables(statement: tirx.Stmt) -> tirx.Stmt:
    """A copy with fresh loop and block variables: each is defined once in a function."""
    fresh: list[tuple[ir.Var, ir.Var]] = []

    def define(variable: ir.Var) -> None:
        fresh.append((variable, tirx.Var(variable.name, variable.ty)))

    def of_block(block: s_tir.SBlock) -> None:
        for iterator in block.iter_vars:
            define(iterator.var)

    callbacks = ((tirx.For, lambda loop: define(loop.loop_var)), (s_tir.SBlock, of_block))
    tvm_ffi.structural_walk(statement, callbacks)

    def swap(variable: ir.Var) -> ir.Var:
        return next((new for old, new in fresh if old.same_as(variable)), variable)

    return tvm_ffi.structural_map(statement, (ir.Var, swap))


def _without_edge(predicate: ir.Expr, edge: Edge) -> ir.Expr:
    """The predicate without the static bounds on the edge's loops, which now hold always."""
    if isinstance(predicate, tirx.And):
        return tirx.And(_without_edge(predicate.a, edge), _without_edge(predicate.b, edge))
    if isinstance(predicate, tirx.LT) and isinstance(predicate.b, tirx.IntImm):
        tested = variables_of(predicate)
        loops = [variable for index, _ in edge.parts for variable in variables_of(index)]
        if any(one.same_as(other) for one in tested for other in loops):
            return tirx.const(True, "bool")
    return predicate


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
