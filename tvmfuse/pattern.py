"""Patterns: what a group is grown from, and how it may grow.

A pattern names an *anchor* by a Relax dataflow pattern and says which neighbours its kernels
take.  Built-in patterns are in ``tvmfuse.patterns``; a user's own are built the same way, from
the public names here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tvm import relax
from tvm.relax.dpl import DFPattern

from .graph import Graph, Node
from .operators import Kind
from .reasons import Reason

SPATIAL_KINDS = frozenset({Kind.ELEMENTWISE, Kind.VIEW, Kind.MOVEMENT})
ELEMENTWISE_KINDS = frozenset({Kind.ELEMENTWISE, Kind.VIEW})


@dataclass(frozen=True)
class Growth:
    """Which neighbours a group takes in.

    ``operand``: kinds absorbed between the anchor and what it reads; ``side``: kinds absorbed
    into the other inputs of its epilogue; ``epilogue``: kinds absorbed after the anchor.
    ``moves`` are the MOVEMENT operators allowed as operand or epilogue; ``expensive_operand``
    allows exp and the like there, which only kernels that read each element once can afford;
    ``several_outputs`` allows values that others read to be written as well;
    ``same_axes`` lets further reductions over the anchor's axes join.
    """

    operand: frozenset[Kind] = frozenset()
    side: frozenset[Kind] = SPATIAL_KINDS
    epilogue: frozenset[Kind] = ELEMENTWISE_KINDS
    moves: frozenset[str] = frozenset({"relax.permute_dims"})
    expensive_operand: bool = False
    several_outputs: bool = False
    same_axes: bool = False


@dataclass(frozen=True)
class MatchContext:
    """What a pattern's check sees: the graph, the anchor's node, and the named parts."""

    graph: Graph
    node: Node
    parts: Mapping[str, relax.Expr]


@dataclass(frozen=True)
class Pattern:
    """One family of groups.

    ``root`` is matched against every binding; ``parts`` names sub-patterns for ``check``, which
    returns ``None`` or the reason why this match may not be used; ``extend`` returns further
    nodes that belong to the anchor itself (attention has two matmuls and a softmax), or a reason.
    """

    name: str
    root: DFPattern
    parts: Mapping[str, DFPattern] = field(default_factory=dict)
    check: Callable[[MatchContext], str | None] | None = None
    extend: Callable[[Graph, Node], tuple[int, ...] | Reason] | None = None
    growth: Growth = Growth()


@dataclass(frozen=True)
class Match:
    """One use of a pattern: its anchor and every node of the group grown from it."""

    pattern: str
    anchor: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Rejection:
    """A match that was refused, and why."""

    pattern: str
    anchor: int
    reason: Reason
