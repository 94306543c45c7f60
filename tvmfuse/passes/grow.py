"""Grow one group from its anchor through its neighbours: epilogue after it, operands before it.

Both directions first collect what the pattern would take, then cut that back to a set that is
convex and writes only the values it may write, and only then claim it.
"""

from __future__ import annotations

from ..graph import Graph, Node
from ..operators import EXPENSIVE, SPATIAL, Kind
from ..reasons import Code
from ..shapes import describe, same_shape, same_size, smaller
from .partition import MAX_GROUP, Group, Partition, domain_of, escaping, reduced_axes

BETWEEN_BLOCKS = "a call that may have effects runs between the two"
KEPT_APART = "kept apart by the user's controls"


def grow_epilogue(part: Partition, group: Group) -> None:
    """Absorb the consumers that run on the values that the group makes."""
    graph = part.graph
    candidate = set(group.nodes)
    frontier = sorted(group.nodes)
    while frontier and len(candidate) < MAX_GROUP:
        index = frontier.pop(0)
        for consumer in graph.consumers[index]:
            if consumer in candidate or not _may_follow(part, group, index, consumer, candidate):
                continue
            candidate.add(consumer)
            frontier.append(consumer)
    _settle(part, group, candidate)


def _may_follow(
    part: Partition, group: Group, producer: int, consumer: int, members: set[int]
) -> bool:
    """Decide one consumer by itself, and say why not."""
    graph, growth = part.graph, group.growth
    node, source = graph.nodes[consumer], graph.nodes[producer]
    edge = (producer, consumer)
    if consumer in part.owner:
        return False
    if node.block != source.block:
        part.cut(*edge, Code.NOT_CONVEX, BETWEEN_BLOCKS)
        return False
    if part.apart and part.keeps_apart([*members, consumer]):
        part.cut(*edge, Code.FENCED, KEPT_APART)
        return False
    if node.kind in (Kind.REDUCTION, Kind.ROW) and growth.same_axes:
        if _same_rows(part, group, node):
            return True
        part.cut(*edge, Code.AXES, f"{node.name} reduces other axes or another tensor's rows")
        return False
    if node.kind not in growth.epilogue:
        if node.kind in SPATIAL:
            part.cut(*edge, Code.OPERATOR, f"{group.pattern} kernels take no {node.operator} last")
        return False
    if node.kind is Kind.MOVEMENT and node.operator not in growth.moves:
        part.cut(*edge, Code.OPERATOR, f"{group.pattern} kernels take no {node.operator} last")
        return False
    allowed = [source.shape]
    if growth.same_axes:
        allowed += domain_of(graph, group)
    if not any(same_size(node.shape, shape) for shape in allowed):
        text = f"{node.name} is {describe(node.shape)}, the kernel makes {describe(source.shape)}"
        part.cut(*edge, Code.SHAPE, text)
        return False
    return True


def _same_rows(part: Partition, group: Group, node: Node) -> bool:
    """True if a further reduction runs over the same axes of the same domain."""
    anchor = part.graph.nodes[group.anchor]
    mine, theirs = reduced_axes(anchor), reduced_axes(node)
    domain = domain_of(part.graph, group)[0]
    value_shape = getattr(node.value.args[0].ty, "shape", None)
    values = getattr(value_shape, "values", None)
    shape = None if values is None else tuple(values)
    return mine is not None and mine == theirs and same_shape(domain, shape)


def _settle(part: Partition, group: Group, candidate: set[int]) -> None:
    """Cut ``candidate`` back to what is convex and writes only allowed values; claim that."""
    graph = part.graph
    chosen = set(group.nodes)
    for index in sorted(candidate - chosen, key=part.dag.order):
        sources = [s for s in graph.nodes[index].inputs if s in chosen]
        if not sources:
            continue
        if part.dag.is_convex([*chosen, index]):
            chosen.add(index)
            continue
        for source in sources:
            text = f"{graph.nodes[index].name} also reads a value computed from the kernel's result"
            part.cut(source, index, Code.NOT_CONVEX, text)
    kept = _trim(part, group, chosen)
    part.claim(group.number, kept)
    group.nodes = kept


def _trim(part: Partition, group: Group, chosen: set[int]) -> set[int]:
    """Drop what lies behind a value that must be stored, unless the kernel may store several."""
    graph = part.graph
    while True:
        outputs = escaping(graph, chosen)
        drop = {
            i
            for i in outputs
            if graph.nodes[i].kind is Kind.VIEW
            and i not in group.core
            and any(s in outputs for s in graph.nodes[i].inputs)
        }
        # What reads a view that is dropped goes with it: the rest would not be convex.
        drop |= {i for i in chosen - set(group.core) if drop & _ancestors(graph, i, chosen)}
        if not drop and len(outputs) > 1 and not _may_write(part, group, outputs):
            keep = set(group.core) | _ancestors(graph, outputs[0], chosen) | {outputs[0]}
            drop = chosen - keep - group.nodes
            if not drop:
                return chosen
        if not drop:
            return chosen
        for index in drop:
            for source in graph.nodes[index].inputs:
                if source in chosen - drop:
                    _cut_behind_output(part, source, index)
        chosen = chosen - drop


def _cut_behind_output(part: Partition, source: int, index: int) -> None:
    node = part.graph.nodes[index]
    if node.kind is Kind.VIEW:
        part.cut(source, index, Code.VIEW, f"{node.name} renames memory that is stored anyway")
        return
    part.cut(source, index, Code.MULTI_USE, _why_stored(part.graph, source))


def _why_stored(graph: Graph, index: int) -> str:
    node, readers = graph.nodes[index], len(graph.consumers[index])
    if node.is_output:
        return f"{node.name} is an output and is stored anyway"
    return f"{node.name} has {readers} readers and is stored for the others"


def _may_write(part: Partition, group: Group, outputs: list[int]) -> bool:
    if not group.growth.several_outputs:
        return False
    domain = domain_of(part.graph, group)
    return all(any(same_size(part.graph.nodes[o].shape, d) for d in domain) for o in outputs)


def _ancestors(graph: Graph, index: int, members: set[int]) -> set[int]:
    found: set[int] = set()
    stack = [index]
    while stack:
        for source in graph.nodes[stack.pop()].inputs:
            if source in members and source not in found:
                found.add(source)
                stack.append(source)
    return found


def grow_operands(part: Partition, group: Group) -> None:
    """Absorb the producers that the kernel can compute where it reads them."""
    frontier = sorted(group.nodes, reverse=True)
    while frontier and len(group.nodes) < MAX_GROUP:
        consumer = frontier.pop(0)
        for producer in reversed(part.graph.nodes[consumer].inputs):
            if producer in group.nodes or not _may_precede(part, group, producer, consumer):
                continue
            if not part.dag.is_convex([*group.nodes, producer]):
                text = "its value also reaches the kernel through another one"
                part.cut(producer, consumer, Code.NOT_CONVEX, text)
                continue
            part.claim(group.number, [*group.nodes, producer])
            group.nodes.add(producer)
            frontier.append(producer)


def _may_precede(part: Partition, group: Group, producer: int, consumer: int) -> bool:
    """Decide one producer by itself, and say why not."""
    graph, growth = part.graph, group.growth
    node, reader = graph.nodes[producer], graph.nodes[consumer]
    edge = (producer, consumer)
    if producer in part.owner or node.kind not in SPATIAL:
        return False
    if node.block != reader.block:
        part.cut(*edge, Code.NOT_CONVEX, BETWEEN_BLOCKS)
        return False
    if part.apart and part.keeps_apart([*group.nodes, producer]):
        part.cut(*edge, Code.FENCED, KEPT_APART)
        return False
    feeds_anchor = consumer in group.core or consumer < group.core[-1]
    kinds = growth.operand if feeds_anchor else growth.side
    any_move = growth.expensive_operand or not feeds_anchor
    if node.kind not in kinds or (
        node.kind is Kind.MOVEMENT and not any_move and node.operator not in growth.moves
    ):
        part.cut(*edge, Code.OPERATOR, f"{group.pattern} kernels take no {node.operator} there")
        return False
    outside = [c for c in graph.consumers[producer] if c not in group.nodes]
    if outside or node.is_output:
        domain = domain_of(graph, group)[0]
        if (
            not (growth.several_outputs and same_shape(node.shape, domain))
            or node.kind is Kind.VIEW
        ):
            code = Code.VIEW if node.kind is Kind.VIEW else Code.MULTI_USE
            part.cut(*edge, code, _why_stored(graph, producer))
            return False
    repeats = smaller(node.shape, reader.shape) or not (
        growth.expensive_operand or not feeds_anchor
    )
    if node.operator in EXPENSIVE and repeats:
        text = (
            f"{node.operator} on {describe(node.shape)} would be computed again for each of "
            f"the {describe(reader.shape)} elements that read it"
        )
        part.cut(*edge, Code.RECOMPUTE_COSTS_MORE, text)
        return False
    return True
