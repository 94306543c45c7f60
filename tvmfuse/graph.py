"""The computation graph of one Relax function: the first of the four steps.

The graph is a read-only view of the function's dataflow blocks: a node per binding, an edge per
use.  It owns no IR; passes read it to decide and then rewrite the module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import tvm
from tvm import relax, tirx
from tvm.ir import Expr

from .operators import Kind, kind_of, operator_name


@dataclass(frozen=True)
class Node:
    """One binding ``var = value``."""

    index: int
    block: int
    var: relax.Var
    value: relax.Expr
    operator: str
    kind: Kind
    inputs: tuple[int, ...]  # nodes that this one reads, each once, in argument order
    is_output: bool  # the value leaves the dataflow block

    @property
    def name(self) -> str:
        """The variable's name in the IR."""
        return self.var.name

    @cached_property
    def shape(self) -> tuple[Expr, ...] | None:
        """The tensor's shape, or ``None`` for tuples and tensors of unknown shape."""
        ty = self.var.ty
        if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
            return tuple(ty.shape.values)
        return None

    @property
    def dtype(self) -> str:
        """The element type, empty for tuples."""
        ty = self.var.ty
        return str(ty.dtype) if isinstance(ty, relax.TensorType) else ""


@dataclass(frozen=True)
class Graph:
    """Nodes in program order, and for each node the nodes that read it."""

    function: str
    nodes: tuple[Node, ...]
    consumers: tuple[tuple[int, ...], ...]
    index_of: dict[relax.Var, int] = field(repr=False)

    def edges(self) -> list[tuple[int, int]]:
        """Every producer-consumer pair, in program order of the consumer."""
        return [(source, node.index) for node in self.nodes for source in node.inputs]


def used_variables(value: relax.Expr) -> list[relax.Var]:
    """The variables that ``value`` reads, each once, in argument order."""
    found: list[relax.Var] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var):
            # A symbolic dimension is a Var too; it is no value that a binding computes.
            is_symbol = isinstance(expr.ty, tvm.ir.PrimType)
            if not is_symbol and not any(expr.same_as(other) for other in found):
                found.append(expr)
        elif isinstance(expr, relax.Call):
            for argument in expr.args:
                visit(argument)
        elif isinstance(expr, relax.Tuple):
            for item in expr.fields:
                visit(item)
        elif isinstance(expr, relax.TupleGetItem):
            visit(expr.tuple_value)

    visit(value)
    return found


def build_graph(mod: tvm.IRModule, function: str = "main") -> Graph:
    """Read the graph of ``mod[function]``.

    Bindings outside dataflow blocks (they may have side effects) are not part of the graph; run
    ``relax.transform.ConvertToDataflow`` first to have as few of them as possible.
    """
    func = mod[function]
    functions = {gv.name_hint: f for gv, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    nodes: list[Node] = []
    index_of: dict[relax.Var, int] = {}
    consumers: list[list[int]] = []
    if not isinstance(func.body, relax.SeqExpr):
        return Graph(function, (), (), {})
    for block_index, block in enumerate(func.body.blocks):
        if not isinstance(block, relax.DataflowBlock):
            continue
        for binding in block.bindings:
            index = len(nodes)
            match_cast = isinstance(binding, relax.MatchCast)
            inputs = tuple(
                index_of[var] for var in used_variables(binding.value) if var in index_of
            )
            nodes.append(
                Node(
                    index=index,
                    block=block_index,
                    var=binding.var,
                    value=binding.value,
                    operator="match_cast" if match_cast else operator_name(binding.value),
                    kind=Kind.OPAQUE if match_cast else kind_of(binding.value, functions),
                    inputs=inputs,
                    is_output=not isinstance(binding.var, relax.DataflowVar),
                )
            )
            index_of[binding.var] = index
            consumers.append([])
            for source in inputs:
                consumers[source].append(index)
    return Graph(function, tuple(nodes), tuple(tuple(c) for c in consumers), index_of)
