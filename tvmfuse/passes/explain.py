"""Give every producer-consumer edge of the graph a code and a sentence."""

from __future__ import annotations

from ..graph import Node
from ..operators import Kind
from ..pattern import Match
from ..reasons import Code, Reason
from .partition import Partition


def explain_edges(part: Partition, matches: tuple[Match, ...]) -> dict[tuple[int, int], Reason]:
    """The fate of every edge, in program order of the consumer."""
    graph = part.graph
    group_of = {node: i for i, match in enumerate(matches) for node in match.nodes}
    edges: dict[tuple[int, int], Reason] = {}
    for producer, consumer in graph.edges():
        mine, theirs = group_of.get(producer), group_of.get(consumer)
        if mine is not None and mine == theirs:
            edges[producer, consumer] = Reason(Code.FUSED, f"in one {matches[mine].pattern} kernel")
            continue
        known = part.reasons.get((producer, consumer))
        if known is None:
            ends = [producer, consumer]
            ends += [matches[n].anchor for n in (mine, theirs) if n is not None]
            known = _split(part, ends)
        edges[producer, consumer] = known or _default(
            graph.nodes[producer],
            graph.nodes[consumer],
            None if mine is None else matches[mine],
            None if theirs is None else matches[theirs],
        )
    return edges


def _split(part: Partition, nodes: list[int]) -> Reason | None:
    """Why the group of one of ``nodes`` was cut back after it had been planned, if it was."""
    splits = (part.limits.get(node) for node in nodes)
    return next((split.reason for split in splits if split is not None), None)


def _default(source: Node, target: Node, mine: Match | None, theirs: Match | None) -> Reason:
    """The reason of an edge that no growing step had to decide."""
    if Kind.TUPLE in (source.kind, target.kind):
        return Reason(Code.TUPLE, f"{source.name} -> {target.name} only takes a tuple apart")
    for node, match in ((source, mine), (target, theirs)):
        if node.kind is Kind.OPAQUE:
            return Reason(Code.OPAQUE, f"{node.operator} is called as it is")
        if match is None and node.kind is Kind.VIEW:
            return Reason(Code.VIEW, f"{node.name} is a reshape that renames memory")
    if mine is None or theirs is None:
        alone = source if mine is None else target
        return Reason(Code.OPERATOR, f"{alone.name} ({alone.operator}) is in no group")
    anchors = {Kind.MATMUL, Kind.CONV, Kind.POOL, Kind.ROW, Kind.REDUCTION}
    if mine.pattern != "elementwise" and theirs.pattern != "elementwise":
        both = f"{mine.pattern} and {theirs.pattern}"
        text = f"{both} are kernels of their own; no schedule rule has both"
        return Reason(Code.TWO_ANCHORS, text)
    if source.kind in anchors or target.kind in anchors:
        other = theirs if source.kind in anchors else mine
        return Reason(Code.BETTER_ALTERNATIVE, f"its neighbour is in a {other.pattern} kernel")
    return Reason(Code.BETTER_ALTERNATIVE, f"each is in another {theirs.pattern} kernel")
