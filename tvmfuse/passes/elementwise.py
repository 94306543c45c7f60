"""Group what no anchor took: elementwise operators and data movement, one kernel per sink.

Walking from the last operator to the first, each one left pulls in the producers that only it
reads.  A producer that several kernels of one shape read joins them into one kernel with several
outputs::

    e = exp(x);  s = sin(e);  c = cos(e)      ->  one kernel that writes s and c
"""

from __future__ import annotations

from ..operators import SPATIAL, Kind
from ..pattern import SPATIAL_KINDS, Growth
from ..reasons import Code
from ..shapes import same_shape
from .grow import MAX_GROUP, Group, Partition, grow_operands

ELEMENTWISE_GROWTH = Growth(
    operand=SPATIAL_KINDS,
    expensive_operand=True,
    several_outputs=True,
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
            if _join(part, node.index, readers):
                grow_operands(part, readers[0])
                continue
        number = first_number + len(groups)
        group = Group(
            number, "elementwise", node.index, (node.index,), ELEMENTWISE_GROWTH, {node.index}
        )
        part.claim(number, [node.index])
        if part.level(node.index) < 1:
            grow_operands(part, group)
        groups.append(group)
    return [group for group in reversed(groups) if group.nodes]


def _reader_groups(
    part: Partition, index: int, groups: list[Group], first_number: int
) -> list[Group] | None:
    """The elementwise groups that read ``index``, if nothing else does and all have its shape."""
    node = part.graph.nodes[index]
    numbers = {part.owner.get(consumer, -1) for consumer in part.graph.consumers[index]}
    if not numbers or node.is_output or any(number < first_number for number in numbers):
        return None
    found = [groups[number - first_number] for number in sorted(numbers)]
    for group in found:
        if part.level(group.anchor):
            return None
        if not same_shape(part.graph.nodes[group.anchor].shape, node.shape):
            return None
    return found


def _join(part: Partition, index: int, readers: list[Group]) -> bool:
    """Merge the readers and the node they share into the first reader, if that is convex."""
    nodes = {index}.union(*(group.nodes for group in readers))
    if len(nodes) > MAX_GROUP:
        return False
    if not part.dag.is_convex(sorted(nodes)):
        for consumer in part.graph.consumers[index]:
            text = "its readers depend on each other through another kernel"
            part.cut(index, consumer, Code.NOT_CONVEX, text)
        return False
    first = readers[0]
    part.claim(first.number, nodes)
    first.nodes = nodes
    for other in readers[1:]:
        other.nodes = set()
    return True
