"""Decide the groups of one function: anchors first, then what grows around them, then the rest.

Order of decisions (each may only take operators that no earlier one took):

1. anchors, in the order of the pattern tuple (attention before the matmuls it is made of);
2. reductions of the same rows become one anchor; 3. epilogues of all anchors; 4. operands of all
anchors; 5. elementwise groups of what is left.

The outcome depends only on the graph and the options, never on hash order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax.dpl import CallPattern, DFPattern, ExprPattern, OrPattern

from ..dag import MergeableDag
from ..graph import Graph, Node, build_graph
from ..operators import Kind
from ..options import Options
from ..pattern import Match, MatchContext, Pattern, Rejection
from ..reasons import Code, Reason
from .controls import check_must_fuse, kept_apart, wanted
from .elementwise import ELEMENTWISE_NAME, group_elementwise
from .explain import explain_edges
from .grow import grow_epilogue, grow_operands
from .partition import Group, Partition, Split
from .siblings import join_reductions
from .symbols import unbound_symbols


@dataclass(frozen=True)
class Plan:
    """The groups of one function and the fate of every edge of its graph."""

    graph: Graph
    matches: tuple[Match, ...]
    rejections: tuple[Rejection, ...]
    edges: dict[tuple[int, int], Reason]


def plan(
    mod: tvm.IRModule,
    function: str,
    patterns: Sequence[Pattern],
    options: Options,
    splits: Sequence[Split] = (),
) -> Plan:
    """Plan the groups of ``mod[function]``; ``splits`` are groups found impossible before."""
    graph = build_graph(mod, function)
    part = Partition(graph, MergeableDag([node.inputs for node in graph.nodes]))
    part.limits.update({split.anchor: split for split in splits})
    part.apart.update(kept_apart(mod, graph, options))
    groups, rejections = _anchors(part, mod[function], wanted(patterns, options))
    groups = join_reductions(part, groups)
    for group in groups:
        if part.level(group.anchor) < 2:
            grow_epilogue(part, group)
    for group in groups:
        if part.level(group.anchor) < 1:
            grow_operands(part, group)
    if ELEMENTWISE_NAME not in options.without:
        groups += group_elementwise(part, 1 + max((g.number for g in groups), default=-1))
    kept = _within_limits(part, groups, options, rejections)
    matches = tuple(
        Match(group.pattern, group.anchor, tuple(sorted(group.nodes))) for group in kept
    )
    edges = explain_edges(part, matches)
    check_must_fuse(graph, matches, edges, options)
    return Plan(graph, matches, tuple(rejections), edges)


def _anchors(
    part: Partition, func: relax.Function, patterns: Sequence[Pattern]
) -> tuple[list[Group], list[Rejection]]:
    graph = part.graph
    values = relax.analysis.get_var2val(func)
    groups: list[Group] = []
    rejections: list[Rejection] = []
    by_operator = _nodes_by_operator(graph)
    for pattern in patterns:
        for node in _candidates(graph, by_operator, pattern.root):
            if part.level(node.index) > 2:
                continue
            if node.index in part.owner or not pattern.root.match(node.value, values):
                continue
            core = _core(graph, pattern, node, values)
            if isinstance(core, Reason):
                rejections.append(Rejection(pattern.name, node.index, core))
                continue
            if len(core) > 1 and part.keeps_apart(core):
                reason = Reason(Code.FENCED, f"the user's controls part the {pattern.name}")
                rejections.append(Rejection(pattern.name, node.index, reason))
                continue
            taken = [i for i in core if i in part.owner]
            if taken or not part.dag.is_convex(list(core)):
                code = Code.BETTER_ALTERNATIVE if taken else Code.NOT_CONVEX
                reason = Reason(code, f"{node.name} overlaps another group")
                rejections.append(Rejection(pattern.name, node.index, reason))
                continue
            number = len(groups)
            part.claim(number, core)
            group = Group(number, pattern.name, node.index, core, pattern.growth, set(core))
            groups.append(group)
    return groups, rejections


def _core(graph: Graph, pattern: Pattern, node: Node, values: object) -> tuple[int, ...] | Reason:
    """The nodes of the anchor itself, or why the pattern refuses it."""
    if node.shape is None:
        return Reason(Code.SYMBOLIC_SHAPE, f"the shape of {node.name} is not known")
    if pattern.check is not None:
        found = pattern.root.extract_matched_expr(node.value, values) or {}
        parts = {name: found[part] for name, part in pattern.parts.items() if part in found}
        refused = pattern.check(MatchContext(graph, node, parts))
        if refused is not None:
            return Reason(Code.PATTERN_CHECK, refused)
    return (node.index,) if pattern.extend is None else pattern.extend(graph, node)


def _nodes_by_operator(graph: Graph) -> dict[str, list[Node]]:
    by_operator: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.kind is not Kind.TUPLE:
            by_operator.setdefault(node.operator, []).append(node)
    return by_operator


def _candidates(
    graph: Graph, by_operator: dict[str, list[Node]], root: DFPattern
) -> Sequence[Node]:
    """The nodes worth matching: those of the operators the pattern's root can be."""
    names = _root_operators(root)
    if names is None:
        return graph.nodes
    nodes = [node for name in names for node in by_operator.get(name, [])]
    return sorted(nodes, key=lambda node: node.index)


def _root_operators(root: DFPattern) -> list[str] | None:
    if isinstance(root, OrPattern):
        left, right = _root_operators(root.left), _root_operators(root.right)
        return None if left is None or right is None else left + right
    if isinstance(root, CallPattern) and isinstance(root.op, ExprPattern):
        return [root.op.expr.name] if isinstance(root.op.expr, tvm.ir.Op) else None
    return None


def _within_limits(
    part: Partition, groups: list[Group], options: Options, rejections: list[Rejection]
) -> list[Group]:
    """Drop groups that cannot be functions of their own, and those beyond the user's fuel."""
    kept: list[Group] = []
    fuel = options.fuel
    for group in groups:
        if not any(part.graph.nodes[i].kind not in (Kind.VIEW,) for i in group.nodes):
            continue
        symbols = unbound_symbols(part.graph, group.nodes)
        reason = None
        if part.level(group.anchor) > 2:
            reason = part.limits[group.anchor].reason
        elif symbols:
            text = f"the kernel needs {', '.join(symbols)}, which none of its inputs' shapes bind"
            reason = Reason(Code.SYMBOLIC_SHAPE, text)
        elif fuel is not None and len(group.nodes) > 1:
            if fuel <= 0:
                reason = Reason(Code.OUT_OF_FUEL, f"only the first {options.fuel} fusions are used")
            else:
                fuel -= 1
        if reason is None:
            kept.append(group)
            continue
        rejections.append(Rejection(group.pattern, group.anchor, reason))
        for index in group.nodes:
            for source in part.graph.nodes[index].inputs:
                if source in group.nodes:
                    part.cut(source, index, reason.code, reason.text)
    return kept
