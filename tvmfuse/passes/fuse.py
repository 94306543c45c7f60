"""The front half of the compiler: plan, outline, lower, schedule until each group is one kernel.

A schedule rule is the legality oracle.  A group that none can make one kernel is cut back step by
step (its operands first, then its epilogue, then the anchor pattern itself) and planned again, so
what remains is what really runs as one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relax, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..options import Options
from ..pattern import Pattern
from ..reasons import Code, Reason
from ..schedules import rules_for
from .build import dispatch_libraries
from .lower import legalize, merge, without_loops
from .outline import OutlinedGroup, outline
from .partition import Split
from .plan import Plan, plan
from .schedule import Choice, Known, Refused, key_of, schedule, without_rules

Splits = dict[str, dict[int, Split]]  # by function, by anchor


@dataclass(frozen=True)
class FusedModule:
    """A module whose groups are functions of their own.

    ``outlined`` has them as Relax functions (the composites), ``lowered`` as PrimFuncs and
    ``scheduled`` as kernels; ``plans`` and ``groups`` are by function.
    """

    prepared: tvm.IRModule
    outlined: tvm.IRModule
    lowered: tvm.IRModule
    scheduled: tvm.IRModule
    plans: dict[str, Plan]
    groups: dict[str, tuple[OutlinedGroup, ...]]
    choices: tuple[Choice, ...]
    splits: Splits


@dataclass
class Memory:
    """Schedules found so far, kept between rounds of replanning within one compilation."""

    outcomes: Known = field(default_factory=dict)

    def distrust(self, func: tirx.PrimFunc, target: Target) -> None:
        """Schedule ``func`` without rules from now on: the kernel that they made was wrong."""
        for must_be_one in (True, False):
            outcome = without_rules(func, target, must_be_one)
            self.outcomes.setdefault(key_of(func, must_be_one), []).insert(0, (func, outcome))


def fuse(
    prepared: tvm.IRModule,
    target: Target,
    patterns: Sequence[Pattern],
    options: Options,
    database: ms.database.Database | None = None,
    splits: Splits | None = None,
    memory: Memory | None = None,
) -> FusedModule:
    """Fuse every Relax function of a module after ``prepare``; ``splits`` are known failures."""
    rules = rules_for(target)
    memory = Memory() if memory is None else memory
    splits = {} if splits is None else splits
    while True:
        outlined, plans, groups = plan_and_outline(prepared, patterns, options, splits)
        legalized = legalize(dispatch_libraries(outlined, target))
        unmergeable = without_loops(legalized)
        if unmergeable:
            failures = [(s, Reason(Code.OPAQUE, text)) for s, text in unmergeable.items()]
            splits = cut_back(plans, groups, splits, failures)
            continue
        lowered = merge(legalized)
        symbols = frozenset(g.symbol for found in groups.values() for g in found)
        result = schedule(lowered, target, rules, symbols, database, memory.outcomes)
        if not result.refused:
            return FusedModule(
                prepared, outlined, lowered, result.mod, plans, groups, result.choices, splits
            )
        splits = cut_back(plans, groups, splits, [_no_rule(item) for item in result.refused])


def plan_and_outline(
    mod: tvm.IRModule, patterns: Sequence[Pattern], options: Options, splits: Splits
) -> tuple[tvm.IRModule, dict[str, Plan], dict[str, tuple[OutlinedGroup, ...]]]:
    """Plan and outline each function that is not itself a fused group."""
    plans: dict[str, Plan] = {}
    groups: dict[str, tuple[OutlinedGroup, ...]] = {}
    for name in graph_functions(mod):
        plans[name] = plan(mod, name, patterns, options, list(splits.get(name, {}).values()))
        chosen = [(match.pattern, match.nodes) for match in plans[name].matches]
        outlined = outline(mod, plans[name].graph, chosen)
        mod, groups[name] = outlined.mod, outlined.groups
    return mod, plans, groups


def graph_functions(mod: tvm.IRModule) -> list[str]:
    """Names of the Relax functions that have a graph: neither primitive nor external."""
    return [
        symbol.name_hint
        for symbol, func in mod.functions_items()
        if isinstance(func, relax.Function)
        and isinstance(func.body, relax.SeqExpr)
        and not (func.attrs and (func.attrs.get("Primitive") or func.attrs.get("Codegen")))
    ]


def cut_back(
    plans: dict[str, Plan],
    groups: dict[str, tuple[OutlinedGroup, ...]],
    splits: Splits,
    failures: Sequence[tuple[str, Reason]],
    to_level: int | None = None,
) -> Splits:
    """``splits`` with every group whose symbol failed cut one step further (or to ``to_level``)."""
    reasons = dict(failures)
    result = {name: dict(found) for name, found in splits.items()}
    for name, found in groups.items():
        anchor_of = {match.nodes: match.anchor for match in plans[name].matches}
        by_node = {node: anchor_of[nodes] for nodes in anchor_of for node in nodes}
        for group in found:
            if group.symbol not in reasons:
                continue
            anchor = by_node[group.nodes[0]]
            known = result.setdefault(name, {})
            level = known[anchor].level + 1 if anchor in known else 1
            level = level if to_level is None else max(level, to_level)
            known[anchor] = Split(anchor, level, reasons[group.symbol])
    return result


def _no_rule(refused: Refused) -> tuple[str, Reason]:
    return refused.symbol, Reason(Code.NO_SCHEDULE_RULE, refused.text)
