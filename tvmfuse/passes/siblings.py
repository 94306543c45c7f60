"""Put reductions over the same rows together: siblings of one tensor, and chains of statistics.

A row kernel reads its row once and may reduce it several times while it is in the cache::

    s = sum(x, 1);  m = max(x, 1)                                ->  one kernel that writes s and m
    c = x - mean(x, 1);  v = mean(c * c, 1)                      ->  one kernel that writes c and v

Both must reduce the same axes of tensors of one shape, and what is computed between them must be
spatial and have one value per element or one per row.  Whether a kernel can hold them all is for
the schedule rules to say: a group that they refuse is first taken apart into its reductions again,
and only then cut back like any other (that costs its anchor one level of its limit).
"""

from __future__ import annotations

from dataclasses import replace

from ..graph import Graph, Node
from ..operators import SPATIAL, Kind
from ..shapes import Shape, same_shape, same_size
from .partition import MAX_GROUP, Group, Partition, reduced_axes

# group_norm and instance_norm reduce axes that their attributes do not name.
_OTHER_ROWS = frozenset({"relax.nn.group_norm", "relax.nn.instance_norm"})
# Producers looked through for the tensor that two reductions share: casts, masks, scales.
MAX_STEPS = 8
# A kernel of more reductions holds too many rows and sums at once for its registers.
MAX_REDUCTIONS = 8
# Operators that lower to two reductions; every other one lowers to one.
_TWO_REDUCTIONS = frozenset(
    f"relax.{name}" for name in "nn.softmax nn.log_softmax nn.layer_norm variance std".split()
)


def join_reductions(part: Partition, groups: list[Group]) -> list[Group]:
    """Merge row groups that reduce the same rows; the groups left, each anchored at its first."""
    rows = sorted(
        (group for group in groups if _is_row(part.graph, group)), key=lambda group: group.anchor
    )
    sources = {group.number: _sources_of(part.graph, group) for group in rows}
    readers: dict[object, list[Group]] = {}
    for group in rows:
        for source in sources[group.number]:
            readers.setdefault(source, []).append(group)
    by_anchor = {group.anchor: group for group in rows}
    gone: set[int] = set()
    for first in rows:
        if first.number in gone:
            continue
        for other in _candidates(part, first, sources, readers, by_anchor):
            if other.number in gone:
                continue
            between = _between(part, first, other)
            if between is None:
                continue
            if part.level(first.anchor):
                # Found impossible together: the first level of the limit was to part them.
                split = part.limits[first.anchor]
                part.limits[first.anchor] = replace(split, level=split.level - 1)
                for index in sorted(between):
                    part.cut(index, other.anchor, split.reason.code, split.reason.text)
                break
            _merge(part, first, other, between)
            gone.add(other.number)
    return [group for group in groups if group.number not in gone]


def _candidates(
    part: Partition,
    first: Group,
    sources: dict[int, set[object]],
    readers: dict[object, list[Group]],
    by_anchor: dict[int, Group],
) -> list[Group]:
    """Later row groups that read a tensor that ``first`` reads, or what is made of its result.

    Only these can belong to it; to look at every pair would be quadratic in the graph.
    """
    found = {group.anchor for source in sources[first.number] for group in readers.get(source, [])}
    seen, stack = set(first.nodes), sorted(first.nodes)
    while stack and len(seen) < MAX_GROUP:
        for consumer in part.graph.consumers[stack.pop()]:
            if consumer in by_anchor:
                found.add(consumer)
                found |= {index for index in _after(part.graph, consumer) if index in by_anchor}
            elif consumer not in seen and part.graph.nodes[consumer].kind in SPATIAL:
                seen.add(consumer)
                stack.append(consumer)
    return [by_anchor[anchor] for anchor in sorted(found) if anchor > first.anchor]


def _after(graph: Graph, start: int) -> set[int]:
    """Nodes that read ``start`` through few spatial operators: the next link of a chain."""
    seen, stack = {start}, [start]
    while stack and len(seen) < MAX_STEPS:
        for consumer in graph.consumers[stack.pop()]:
            if consumer not in seen:
                seen.add(consumer)
                if graph.nodes[consumer].kind in SPATIAL:
                    stack.append(consumer)
    return seen


def _sources_of(graph: Graph, group: Group) -> set[object]:
    anchor = graph.nodes[group.anchor]
    return _sources(graph, anchor, _read_shape(anchor))


def _is_row(graph: Graph, group: Group) -> bool:
    anchor = graph.nodes[group.anchor]
    return (
        group.growth.same_axes
        and group.core == (group.anchor,)
        and anchor.operator not in _OTHER_ROWS
        and reduced_axes(anchor) is not None
    )


def _between(part: Partition, first: Group, other: Group) -> set[int] | None:
    """What must run between the two in one kernel, or None if they do not belong together."""
    graph = part.graph
    a, b = graph.nodes[first.anchor], graph.nodes[other.anchor]
    shape = _read_shape(a)
    same_rows = reduced_axes(a) == reduced_axes(b) and same_shape(shape, _read_shape(b))
    if a.block != b.block or not same_rows or part.level(other.anchor):
        return None
    between = _paths(graph, first.nodes, other.anchor)
    joined = between or first.nodes.intersection(b.inputs)
    if not joined and not (_sources(graph, a, shape) & _sources(graph, b, shape)):
        return None
    statistics = [graph.nodes[i].shape for i in first.core if graph.nodes[i].kind is Kind.REDUCTION]
    statistics += [b.shape] if b.kind is Kind.REDUCTION else []
    for index in between:
        node = graph.nodes[index]
        fits = [shape, *statistics]
        if index in part.owner or node.kind not in SPATIAL:
            return None
        if not any(same_size(node.shape, other_shape) for other_shape in fits):
            return None
    members = first.nodes | between | {other.anchor}
    if len(members) > MAX_GROUP or _reductions(graph, members) > MAX_REDUCTIONS:
        return None
    if part.keeps_apart(members):
        return None
    return between if part.dag.is_convex(sorted(members)) else None


def _reductions(graph: Graph, members: set[int]) -> int:
    """How many reductions the kernel of ``members`` would hold."""
    rows = [graph.nodes[i] for i in members if graph.nodes[i].kind in (Kind.ROW, Kind.REDUCTION)]
    return sum(2 if node.operator in _TWO_REDUCTIONS else 1 for node in rows)


def _merge(part: Partition, first: Group, other: Group, between: set[int]) -> None:
    first.nodes |= between | other.nodes
    first.core = tuple(sorted(first.nodes))
    part.claim(first.number, first.nodes)


def _read_shape(node: Node) -> Shape | None:
    shape = getattr(node.value.args[0].ty, "shape", None)
    values = getattr(shape, "values", None)
    return None if values is None else tuple(values)


def _paths(graph: Graph, start: set[int], end: int) -> set[int]:
    """Nodes outside ``start`` on a path from ``start`` to ``end``, without ``end`` itself."""
    low = min(start)
    above, stack = {end}, [end]
    while stack and len(above) <= MAX_GROUP:
        for source in graph.nodes[stack.pop()].inputs:
            if source >= low and source not in above:
                above.add(source)
                # A path through anything else leaves the kernel; the convexity check sees it.
                if source not in start and graph.nodes[source].kind in SPATIAL:
                    stack.append(source)
    found: set[int] = set()
    for index in sorted(above - start):
        if any(s in start or s in found for s in graph.nodes[index].inputs):
            found.add(index)
    return found - {end}


def _sources(graph: Graph, node: Node, shape: Shape | None) -> set[object]:
    """The tensors of the rows' shape that ``node`` is computed from by spatial operators."""
    found: set[object] = set()
    stack, steps = [node.value.args[0]], 0
    while stack and steps < MAX_STEPS:
        value, steps = stack.pop(), steps + 1
        if not same_shape(getattr(_type_shape(value), "values", None), shape):
            continue
        found.add(value)
        index = graph.index_of.get(value)
        if index is not None and graph.nodes[index].kind in SPATIAL:
            stack += list(getattr(graph.nodes[index].value, "args", []))
    return found


def _type_shape(value: object) -> object:
    return getattr(getattr(value, "ty", None), "shape", None)
