"""Schedule rules for CPUs, in the order they are tried: the specific before the general."""

from __future__ import annotations

from ..base import ScheduleRule
from .attention import AttentionRule
from .conv import ConvRule
from .depthwise import DepthwiseRule
from .gate import GateRule
from .generic import GenericRule
from .injective import InjectiveRule
from .matmul import MatmulRule
from .pool import PoolRule
from .row import RowRule

__all__ = ["RULES"]

RULES: tuple[ScheduleRule, ...] = (
    AttentionRule(),
    GateRule(),
    MatmulRule(),
    ConvRule(),
    DepthwiseRule(),
    PoolRule(),
    RowRule(),
    InjectiveRule(),
    GenericRule(),
)
