"""Questions about the index expressions of one block: what neighbouring threads touch."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import ir, tirx

from .. import analysis
from ..analysis import BlockInfo


def bound_analyzer(block: BlockInfo) -> tvm.sym.Analyzer:
    """An analyzer that knows the range of each of the block's iterators."""
    analyzer = tvm.sym.Analyzer()
    for iterator in block.node.iter_vars:
        analyzer.bind(iterator.var, iterator.dom)
    return analyzer


class Neighbours:
    """``length`` consecutive aligned values of one iterator of a block: what they touch.

    ``position`` is the iterator's, the last by default.  Its extent must be a multiple of
    ``length`` (see ``splits``).
    """

    def __init__(self, block: BlockInfo, length: int, position: int | None = None) -> None:
        chosen = len(block.iterators) - 1 if position is None else position
        size = analysis.static(block.extents[chosen]) if block.iterators else None
        self.splits = size is not None and size % length == 0
        self._length = length
        if size is None or not self.splits:
            return
        self._analyzer = tvm.sym.Analyzer()
        for number, iterator in enumerate(block.node.iter_vars):
            if number != chosen:
                self._analyzer.bind(iterator.var, iterator.dom)
        split = block.iterators[chosen]
        group = tirx.Var("group", split.ty)
        self._lane = tirx.Var("lane", split.ty)
        self._analyzer.bind(group, ir.Range(0, size // length))
        self._analyzer.bind(self._lane, ir.Range(0, length))
        self._analyzer.bind(split, group * length + self._lane)

    def share(self, expressions: Sequence[ir.Expr]) -> bool:
        """Whether the expressions have one value for all neighbours."""
        return not any(
            _mentions(self._analyzer.simplify(expression), self._lane) for expression in expressions
        )

    def are_vector(self, buffer: ir.Var, indices: Sequence[ir.Expr]) -> bool:
        """Whether they are consecutive aligned elements on the buffer's last axis."""
        if not indices or not self.share(indices[:-1]):
            return False
        index = self._analyzer.simplify(indices[-1])
        first = self._analyzer.simplify(index - self._lane)
        width = analysis.static(buffer.shape[-1])
        return (
            _mentions(index, self._lane)
            and not _mentions(first, self._lane)
            and width is not None
            and width % self._length == 0
            and self._analyzer.can_prove_equal(first % self._length, 0)
        )


def vector_accesses(block: BlockInfo, length: int, position: int | None = None) -> bool:
    """Whether neighbours write one vector, and each load is one vector or one shared element."""
    store = block.store
    around = Neighbours(block, length, position)
    if store is None or not around.splits:
        return False
    if not around.are_vector(store.buffer, list(store.indices)):
        return False
    return all(
        around.share(list(load.indices)) or around.are_vector(load.source, list(load.indices))
        for load in analysis.loads_of(store.value)
    )


def contiguous(block: BlockInfo, length: int, position: int | None = None) -> bool:
    """Whether the block's statement can be one vector operation over ``length`` neighbours.

    Its conditions must not depend on which neighbour it is.  (A vector of gathered elements is
    slower, and TVM prints it wrongly for fp16: eight arguments of ``make_uint4``.)
    """
    store = block.store
    if store is None or not vector_accesses(block, length, position):
        return False
    return Neighbours(block, length, position).share(conditions_of(store.value))


def conditions_of(value: ir.Expr) -> list[ir.Expr]:
    """The conditions on iterators of every ``if_then_else`` and ``Select`` in an expression.

    A condition that loads data is left out: a vector select takes it.
    """
    found = [
        call.args[0]
        for call in analysis.calls_of(value)
        if call.op.same_as(ir.Op.get("prim.if_then_else"))
    ]
    tvm_ffi.structural_walk(value, (tirx.Select, lambda node: found.append(node.condition)))
    return [condition for condition in found if not analysis.loads_of(condition)]


def is_contraction(block: BlockInfo) -> bool:
    """Whether a reduction combines two operands that each lack a spatial iterator of the other.

    ``a[i, k] * b[k, j]`` is one; ``x[i, k] * weight[k]`` is not.
    """
    spatial = [
        iterator
        for iterator, kind, extent in zip(block.iterators, block.kinds, block.extents, strict=True)
        if kind == "S" and analysis.static(extent) != 1
    ]
    operands = []
    for load in analysis.loads_of(block.node.body):
        if not any(load.source.same_as(buffer) for buffer in block.writes):
            used = [v for index in load.indices for v in analysis.variables_of(index)]
            operands.append({n for n, v in enumerate(spatial) if any(v.same_as(u) for u in used)})
    return any(one - other and other - one for one in operands for other in operands)


def _mentions(expression: ir.Expr, variable: ir.Var) -> bool:
    return any(found.same_as(variable) for found in analysis.variables_of(expression))
