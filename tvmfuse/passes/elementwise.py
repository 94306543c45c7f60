"""Group what no anchor took: elementwise operators and data movement, one kernel per sink.

Walking from the last operator to the first, each one left pulls in the producers that only it
reads.  A producer that several kernels of one shape read joins them into one kernel with several
outputs::

    e = exp(x);  s = sin(e);  c = cos(e)      ->  one kernel that writes s and c
"""

from __future__ import annotations

from ..operators import SPATIAL, Kind
from ..pattern import SPATIAL_KINDS, Growth
from ..reasons import Code, Reason
from ..shapes import same_shape
from .grow import KEPT_APART, grow_operands
from .partition import MAX_GROUP, Group, Partition

ELEMENTWISE_NAME = "elementwise"
ELEMENTWISE_GROWTH = Growth(
    operand=SPATIAL_KINDS,
    expensive_operand=True,
)


def group_elementwise(part: Partition, first_number: int) -> list[Group]:
    """Claim every spatial operator that is in no group yet; VIEW operators alone stay views."""
    groups: list[Group] = []
    for node in reversed(part.graph.nodes):
        if node.index in part.owner or node.kind not in SPATIAL or node.kind is Kind.VIEW:
            continue
        if node.shape is None:
            continue
        readers = _reader_groups(part, node.index, groups, first_number)
        if readers is not None and not part.level(node.index):
            joined = _join(part, node.index, readers)
            if joined is not None:
                grow_operands(part, joined)
                continue
        number = first_number + len(groups)
        group = Group(
            number, ELEMENTWISE_NAME, node.index, (node.index,), ELEMENTWISE_GROWTH, {node.index}
        )
        part.claim(number, [node.index])
        if part.level(node.index) < 1:
            grow_operands(part, group)
        groups.append(group)
    return [group for group in reversed(groups) if group.nodes]


def _reader_groups(
    part: Partition, index: int, groups: list[Group], first_number: int
) -> list[Group] | None:
    """The elementwise groups of its shape that read ``index``, the earliest first, or None."""
    graph, node = part.graph, part.graph.nodes[index]
    numbers = {part.owner.get(consumer, -1) for consumer in graph.consumers[index]}
    found = []
    for number in sorted((n for n in numbers if n >= first_number), reverse=True):
        group = groups[number - first_number]
        anchor = graph.nodes[group.anchor]
        fits = anchor.block == node.block and same_shape(anchor.shape, node.shape)
        if fits and not part.level(group.anchor):
            found.append(group)
    return found or None


def _join(part: Partition, index: int, readers: list[Group]) -> Group | None:
    """Merge the node and its readers into the first of them, those that stay convex together.

    What others read of it (or the function returns) the kernel writes as well.
    """
    nodes, joined = {index}, []
    for group in readers:
        candidate = nodes | group.nodes
        if part.keeps_apart(candidate):
            for consumer in set(part.graph.consumers[index]) & group.nodes:
                part.cut(index, consumer, Code.FENCED, KEPT_APART)
            continue
        if len(candidate) <= MAX_GROUP and part.dag.is_convex(sorted(candidate)):
            nodes = candidate
            joined.append(group)
            continue
        for consumer in set(part.graph.consumers[index]) & group.nodes:
            text = "its readers depend on each other through another kernel"
            part.reasons[index, consumer] = Reason(Code.NOT_CONVEX, text)
    if not joined:
        return None
    first = joined[0]
    part.claim(first.number, nodes)
    first.nodes = nodes
    for other in joined[1:]:
        other.nodes = set()
    return first
