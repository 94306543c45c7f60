"""Schedule rules for CPUs, in the order in which they are tried."""

from __future__ import annotations

import importlib
import importlib.util

from ..base import ScheduleRule

# Stand-in while the other rules are being written: lazy, and skips what cannot be imported yet.
_ORDER = (
    ("attention", "AttentionRule"),
    ("gate", "GateRule"),
    ("matmul", "MatmulRule"),
    ("conv", "ConvRule"),
    ("depthwise", "DepthwiseRule"),
    ("pool", "PoolRule"),
    ("row", "RowRule"),
    ("injective", "InjectiveRule"),
    ("generic", "GenericRule"),
)


def __getattr__(name: str) -> tuple[ScheduleRule, ...]:
    if name != "RULES":
        raise AttributeError(name)
    rules = []
    for module, rule in _ORDER:
        if importlib.util.find_spec(f"{__name__}.{module}") is None:
            continue
        try:
            found = getattr(importlib.import_module(f"{__name__}.{module}"), rule, None)
        except ImportError:
            continue
        if found is not None:
            rules.append(found())
    return tuple(rules)
