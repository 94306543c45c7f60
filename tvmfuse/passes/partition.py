"""The groups while they are being formed: who owns which node, and why edges were cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ..dag import MergeableDag
from ..graph import Graph, Node
from ..operators import Kind
from ..pattern import Growth
from ..reasons import Code, Reason
from ..shapes import Shape

MAX_GROUP = 64  # operators; a kernel of more is no longer one that a schedule rule can read


@dataclass(frozen=True)
class Split:
    """A group that was found impossible: how far it may grow now, and why.

    ``level`` 1: no operands; 2: no epilogue either, only the anchor; 3: not even the anchor, its
    operators are left to other patterns.
    """

    anchor: int
    level: int
    reason: Reason


@dataclass
class Partition:
    """The groups so far, and the reason of every edge that was considered and cut."""

    graph: Graph
    dag: MergeableDag
    owner: dict[int, int] = field(default_factory=dict)
    reasons: dict[tuple[int, int], Reason] = field(default_factory=dict)
    apart: dict[int, frozenset[int]] = field(default_factory=dict)
    limits: dict[int, Split] = field(default_factory=dict)

    def level(self, anchor: int) -> int:
        """How far the group of ``anchor`` must be cut back: 0 not at all, 3 entirely."""
        return self.limits[anchor].level if anchor in self.limits else 0

    def keeps_apart(self, members: Collection[int]) -> bool:
        """True if the user's controls keep two of ``members`` in different kernels."""
        return bool(self.apart) and any(
            not self.apart.get(node, frozenset()).isdisjoint(members) for node in members
        )

    def cut(self, producer: int, consumer: int, code: Code, text: str) -> None:
        """Remember why an edge was not fused; the first reason stays."""
        self.reasons.setdefault((producer, consumer), Reason(code, text))

    def claim(self, group: int, nodes: Iterable[int]) -> bool:
        """Give ``nodes`` (convex together with the group's) to ``group``; False if a cycle."""
        ordered = sorted(nodes, key=self.dag.order)
        merged = True
        for node in ordered[1:]:
            merged = self.dag.merge(ordered[0], node) and merged
        for node in ordered:
            self.owner[node] = group
        return merged


@dataclass
class Group:
    """A group while it grows."""

    number: int
    pattern: str
    anchor: int
    core: tuple[int, ...]
    growth: Growth
    nodes: set[int] = field(default_factory=set)


def domain_of(graph: Graph, group: Group) -> tuple[Shape | None, ...]:
    """Shapes that the kernel iterates over: of what the anchor reads, and of what it makes."""
    anchor = graph.nodes[group.anchor]
    value = anchor.value
    source = value.args[0].ty if hasattr(value, "args") and len(value.args) else anchor.var.ty
    shape = getattr(source, "shape", None)
    values = tuple(shape.values) if shape is not None and hasattr(shape, "values") else None
    made = [group.core[-1]]
    if group.growth.same_axes:
        made += [i for i in group.core if graph.nodes[i].kind in (Kind.ROW, Kind.REDUCTION)]
    return values, *(graph.nodes[i].shape for i in made)


def reduced_axes(node: Node) -> frozenset[int] | None:
    """The axes that a reduction or row operator runs over, or None if it has none."""
    if node.kind not in (Kind.REDUCTION, Kind.ROW) or not node.value.args:
        return None
    rank = node.value.args[0].ty.ndim
    attrs = node.value.attrs
    axes = getattr(attrs, "axis", None) if hasattr(attrs, "axis") else getattr(attrs, "axes", None)
    if axes is None:
        return frozenset(range(rank))
    items = [axes] if isinstance(axes, int) or hasattr(axes, "value") else list(axes)
    return frozenset(int(a) % rank for a in items)


def escaping(graph: Graph, members: set[int]) -> list[int]:
    """Members whose value others read, in program order."""
    return [
        i
        for i in sorted(members)
        if graph.nodes[i].is_output or any(c not in members for c in graph.consumers[i])
    ]
