"""Which symbolic dimensions a group uses that none of its inputs binds."""

from __future__ import annotations

from collections.abc import Iterable

from tvm import relax, tirx
from tvm.ir import Expr

from ..graph import Graph, used_variables


def unbound_symbols(graph: Graph, nodes: Iterable[int]) -> list[str]:
    """Names of symbols in the group's shapes that are no plain dimension of any of its inputs.

    A fused function infers its symbols from its parameters' shapes; ``n + 1`` binds nothing.
    """
    members = set(nodes)
    used: dict[str, None] = {}
    bound: set[str] = set()
    for index in sorted(members):
        node = graph.nodes[index]
        _collect(node.var.ty, used)
        if isinstance(node.value, relax.Call):
            for arg in node.value.args:
                if isinstance(arg, relax.ShapeExpr):
                    _collect_dimensions(arg.values, used)
        for var in used_variables(node.value):
            if graph.index_of.get(var) in members:
                continue
            _collect(var.ty, used)
            if isinstance(var.ty, relax.TensorType) and isinstance(var.ty.shape, relax.ShapeExpr):
                bound.update(d.name for d in var.ty.shape.values if isinstance(d, tirx.Var))
    return [name for name in used if name not in bound]


def _collect(ty: relax.Type, used: dict[str, None]) -> None:
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            _collect(field, used)
    elif isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        _collect_dimensions(ty.shape.values, used)


def _collect_dimensions(dimensions: Iterable[Expr], used: dict[str, None]) -> None:
    for dimension in dimensions:
        if isinstance(dimension, tirx.IntImm):
            continue
        for var in tirx.analysis.undefined_vars(dimension):
            used[var.name] = None
