"""Turn what the compiler decided into report entries."""

from __future__ import annotations

from collections.abc import Mapping

from ..cost import call_bytes, flops
from ..passes.fuse import FusedModule
from ..passes.plan import Plan
from ..reasons import Code
from .data import EdgeEntry, GroupEntry, RejectionEntry


def group_entries(fused: FusedModule) -> tuple[GroupEntry, ...]:
    """One entry per distinct function, in order of first use."""
    choices = {choice.symbol: choice for choice in fused.choices}
    counts: dict[str, int] = {}
    first: dict[str, tuple[str, tuple[str, ...]]] = {}
    for name, found in fused.groups.items():
        nodes = fused.plans[name].graph.nodes
        for group in found:
            counts[group.symbol] = counts.get(group.symbol, 0) + 1
            operators = tuple(nodes[i].operator for i in group.nodes)
            first.setdefault(group.symbol, (group.pattern, operators))
    entries = []
    for symbol, (pattern, operators) in first.items():
        choice = choices[symbol]
        lowered = fused.lowered[symbol]
        entries.append(
            GroupEntry(
                symbol=symbol,
                pattern=pattern,
                operators=operators,
                count=counts[symbol],
                kernels=choice.kernels,
                schedule={"source": choice.source, "name": choice.name},
                bytes=call_bytes(lowered),
                flops=flops(lowered),
            )
        )
    return tuple(entries)


def edge_entries(plans: Mapping[str, Plan]) -> tuple[EdgeEntry, ...]:
    """Every producer-consumer edge of every function's graph."""
    return tuple(
        EdgeEntry(
            function=name,
            producer=plan.graph.nodes[producer].name,
            consumer=plan.graph.nodes[consumer].name,
            status="fused" if reason.code is Code.FUSED else "cut",
            code=reason.code.value,
            reason=reason.text,
        )
        for name, plan in plans.items()
        for (producer, consumer), reason in plan.edges.items()
    )


def rejection_entries(plans: Mapping[str, Plan]) -> tuple[RejectionEntry, ...]:
    """Every match that was refused."""
    return tuple(
        RejectionEntry(
            rejection.pattern,
            plan.graph.nodes[rejection.anchor].name,
            rejection.reason.code.value,
            rejection.reason.text,
        )
        for plan in plans.values()
        for rejection in plan.rejections
    )
