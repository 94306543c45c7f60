"""Attention as exporters write it: matmul, scale, mask, softmax, guard, matmul -> one kernel.

The two matmuls belong to the anchor because the scores between them must never be stored
(Dao et al., "FlashAttention", NeurIPS 2022).  Everything on a path between the two belongs to it
as well: scaling, masks, and the guard that PyTorch emits for rows that are masked throughout::

    s = matmul(q, k^T);  s = s * scale + mask;  p = softmax(s)
    p = where(all(s == -inf), 0, p);            o = matmul(p, v)
"""

from __future__ import annotations

from tvm.relax.dpl import is_op, wildcard

from ..graph import Graph, Node
from ..operators import SPATIAL, Kind
from ..pattern import Growth, Pattern
from ..reasons import Code, Reason

# Scale, mask, cast, reshape, guard: no exporter writes more between matmul and softmax.
MAX_STEPS = 24


def _walk_to_matmul(graph: Graph, start: int, upward: bool) -> int | None:
    """The nearest matmul on a path of spatial operators from ``start``, or None."""
    seen, queue = {start}, [start]
    while queue and len(seen) < MAX_STEPS:
        node = graph.nodes[queue.pop(0)]
        for index in node.inputs if upward else graph.consumers[node.index]:
            if index in seen:
                continue
            other = graph.nodes[index]
            if other.kind is Kind.MATMUL:
                return index
            if other.kind in SPATIAL and _keeps_rows(other, node):
                seen.add(index)
                queue.append(index)
    return None


def _keeps_rows(a: Node, b: Node) -> bool:
    """True if both have the softmax's row as last axis: the scores, not a mask or a statistic."""
    if a.shape is None or b.shape is None or not a.shape or not b.shape:
        return False
    return bool(a.shape[-1].same_as(b.shape[-1])) or str(a.shape[-1]) == str(b.shape[-1])


def _between(graph: Graph, first: int, last: int) -> tuple[int, ...]:
    """Every node on a path from ``first`` to ``last``, both included."""
    forward, stack = {first}, [first]
    while stack:
        for index in graph.consumers[stack.pop()]:
            if index <= last and index not in forward:
                forward.add(index)
                stack.append(index)
    found, stack = {last}, [last]
    while stack:
        for index in graph.nodes[stack.pop()].inputs:
            if index in forward and index not in found:
                found.add(index)
                stack.append(index)
    return tuple(sorted(found | {first}))


def _extend(graph: Graph, node: Node) -> tuple[int, ...] | Reason:
    """The nodes of the attention around the softmax ``node``, or why it is not one."""
    rank = len(node.shape or ())
    axis = int(node.value.attrs.axis)
    if axis not in (-1, rank - 1):
        return Reason(Code.AXES, f"{node.name} is a softmax over axis {axis}, not the last")
    first = _walk_to_matmul(graph, node.index, upward=True)
    last = _walk_to_matmul(graph, node.index, upward=False)
    if first is None or last is None:
        side = "before" if first is None else "after"
        return Reason(Code.OPERATOR, f"{node.name} has no matmul of its scores {side} it")
    members = _between(graph, first, last)
    if node.index not in members:
        return Reason(Code.NOT_CONVEX, f"{node.name} is not between its two matmuls")
    probabilities = graph.index_of.get(graph.nodes[last].value.args[0])
    if probabilities not in members:
        return Reason(Code.OPERATOR, f"{node.name} is the right operand of the second matmul")
    inside = set(members)
    for index in members:
        member = graph.nodes[index]
        if member.kind is Kind.MATMUL and index not in (first, last):
            return Reason(Code.TWO_ANCHORS, f"{member.name} is a third matmul in between")
        if member.kind not in SPATIAL | {Kind.MATMUL, Kind.ROW, Kind.REDUCTION}:
            return Reason(Code.OPERATOR, f"{member.name} ({member.operator}) is in between")
        escapes = member.is_output or any(c not in inside for c in graph.consumers[index])
        if index != last and escapes:
            return Reason(Code.MULTI_USE, f"{member.name} is also read outside the attention")
    return members


ATTENTION = Pattern(
    name="attention",
    root=is_op("relax.nn.softmax")(wildcard()),
    extend=_extend,
    growth=Growth(
        operand=frozenset({Kind.VIEW, Kind.MOVEMENT, Kind.ELEMENTWISE}),
        epilogue=frozenset({Kind.VIEW, Kind.MOVEMENT}),
        moves=frozenset({"relax.permute_dims", "relax.broadcast_to", "relax.strided_slice"}),
    ),
)
