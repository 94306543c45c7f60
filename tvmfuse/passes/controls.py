"""What the user's controls mean for one graph: which nodes to keep apart, which must be together.

A name is a variable's (``lv12``, as ``tvmfuse explain`` prints it) or an operator's (``matmul``,
``relax.nn.relu``, ``nn.relu``); an operator's name stands for every operator of that kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from ..errors import FusionError
from ..graph import Graph
from ..options import Options
from ..pattern import Match, Pattern
from ..reasons import Code, Reason
from .elementwise import ELEMENTWISE_NAME


def wanted(patterns: Sequence[Pattern], options: Options) -> tuple[Pattern, ...]:
    """``patterns`` but those that are turned off; raises FusionError for an unknown name."""
    known = {pattern.name for pattern in patterns} | {ELEMENTWISE_NAME}
    for name in sorted(options.without - known):
        raise FusionError(
            f"there is no pattern {name!r} to turn off; the patterns are {', '.join(sorted(known))}"
        )
    return tuple(pattern for pattern in patterns if pattern.name not in options.without)


def kept_apart(mod: tvm.IRModule, graph: Graph, options: Options) -> dict[int, frozenset[int]]:
    """For each node the nodes that may not be in its kernel, from ``never_fuse`` and ``fence``.

    Raises FusionError for a name that no operator or variable of the module has and for a pair
    that must and must not be fused.
    """
    if not (options.never_fuse or options.must_fuse or options.fence):
        return {}
    _check_names(mod, options)
    apart: dict[int, set[int]] = {}
    for left, right in sorted(options.never_fuse):
        mine, theirs = _named(graph, left), _named(graph, right)
        for a in mine:
            for b in theirs - {a}:
                apart.setdefault(a, set()).add(b)
                apart.setdefault(b, set()).add(a)
    for node in graph.nodes:
        if node.name in options.fence:
            for reader in graph.consumers[node.index]:
                apart.setdefault(node.index, set()).add(reader)
                apart.setdefault(reader, set()).add(node.index)
    return {node: frozenset(others) for node, others in apart.items()}


def check_must_fuse(
    graph: Graph,
    matches: Sequence[Match],
    edges: dict[tuple[int, int], Reason],
    options: Options,
) -> None:
    """Raise FusionError, with the reason, for the first pair of ``must_fuse`` that is apart."""
    group_of = {node: number for number, match in enumerate(matches) for node in match.nodes}
    for left, right in sorted(options.must_fuse):
        for a, b in _pairs(graph, left, right):
            if a in group_of and group_of[a] == group_of.get(b):
                continue
            reason = edges.get((min(a, b), max(a, b)))
            names = f"{graph.nodes[a].name} and {graph.nodes[b].name}"
            if reason is None:
                raise FusionError(f"{names} must be fused, but are in different kernels")
            code = Code(reason.code).value
            raise FusionError(f"{names} must be fused, but cannot: {code}: {reason.text}")


def _pairs(graph: Graph, left: str, right: str) -> list[tuple[int, int]]:
    """Neighbours of the two names; without any, the two nodes if each name means one."""
    mine, theirs = _named(graph, left), _named(graph, right)
    edges = [
        (a, b)
        for a, b in graph.edges()
        if (a in mine and b in theirs) or (a in theirs and b in mine)
    ]
    if edges or not mine or not theirs:
        return edges
    if len(mine) == len(theirs) == 1:
        return [(min(mine), min(theirs))]
    raise FusionError(f"{left} and {right} must be fused, but no {left} is next to a {right}")


def _named(graph: Graph, name: str) -> set[int]:
    return {n.index for n in graph.nodes if _is_called(n.name, n.operator, name)}


def _is_called(variable: str, operator: str, name: str) -> bool:
    return name in (variable, operator, operator.removeprefix("relax."))


def _check_names(mod: tvm.IRModule, options: Options) -> None:
    for pair in sorted(options.never_fuse & options.must_fuse):
        raise FusionError(f"{pair[0]} and {pair[1]} both must and must not be fused")
    for pair in sorted(options.must_fuse):
        if pair[::-1] in options.never_fuse:
            raise FusionError(f"{pair[0]} and {pair[1]} both must and must not be fused")
    variables: set[str] = set()
    operators: set[str] = set()
    for _, func in mod.functions_items():
        if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
            continue
        for block in func.body.blocks:
            for binding in block.bindings:
                variables.add(binding.var.name)
                operator = getattr(getattr(binding.value, "op", None), "name", "")
                operators |= {operator, operator.removeprefix("relax.")}
    pairs = sorted(options.never_fuse | options.must_fuse)
    for name in [name for pair in pairs for name in pair]:
        if name not in variables | operators:
            raise FusionError(f"no variable or operator of the model is called {name!r}")
    for name in sorted(options.fence - variables):
        raise FusionError(f"no variable of the model is called {name!r}")
