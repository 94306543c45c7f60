"""Schedule rules for NVIDIA GPUs, in the order in which they are tried."""

from __future__ import annotations

import importlib
import importlib.util

from ..base import ScheduleRule

# Stand-in while the other rules are being written.
_ORDER = (
    ("attention", "AttentionRule"),
    ("matmul", "MatmulRule"),
    ("conv", "ConvRule"),
    ("depthwise", "DepthwiseRule"),
    ("pool", "PoolRule"),
    ("row", "RowRule"),
    ("injective", "InjectiveRule"),
    ("generic", "GenericRule"),
)
RULES: tuple[ScheduleRule, ...] = tuple(
    getattr(importlib.import_module(f"tvmfuse.schedules.cuda.{module}"), rule)()
    for module, rule in _ORDER
    if importlib.util.find_spec(f"tvmfuse.schedules.cuda.{module}") is not None
)
