"""Questions about the index expressions of one block: what neighbouring threads touch."""

from __future__ import annotations

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


def contiguous(block: BlockInfo, length: int) -> bool:
    """Whether ``length`` neighbours of the last iterator make one vector access per buffer.

    Every load must be at the same address for all of them, or at consecutive aligned addresses
    on its buffer's last axis; conditions must not depend on which neighbour it is.  A vector of
    gathered elements is slower, and TVM prints it wrongly for fp16 (eight arguments of
    ``make_uint4``).
    """
    store = block.store
    if store is None or not block.iterators:
        return False
    size = analysis.static(block.extents[-1])
    if size is None or size % length:
        return False
    analyzer = tvm.sym.Analyzer()
    for iterator in block.node.iter_vars[:-1]:
        analyzer.bind(iterator.var, iterator.dom)
    last = block.iterators[-1]
    group = tirx.Var("group", last.ty)
    lane = tirx.Var("lane", last.ty)
    analyzer.bind(group, ir.Range(0, size // length))
    analyzer.bind(lane, ir.Range(0, length))
    analyzer.bind(last, group * length + lane)
    accesses = [(store.buffer, list(store.indices))]
    accesses += [(load.source, list(load.indices)) for load in analysis.loads_of(store.value)]
    for buffer, indices in accesses:
        for position, index in enumerate(indices):
            index = analyzer.simplify(index)
            if not _mentions(index, lane):
                continue
            if position != len(indices) - 1 or _mentions(analyzer.simplify(index - lane), lane):
                return False
            width = analysis.static(buffer.shape[-1])
            if width is None or width % length:
                return False
            if not analyzer.can_prove_equal((index - lane) % length, 0):
                return False
    return not any(
        _mentions(analyzer.simplify(condition), lane) for condition in conditions_of(store.value)
    )


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


def _mentions(expression: ir.Expr, variable: ir.Var) -> bool:
    return any(found.same_as(variable) for found in analysis.variables_of(expression))
