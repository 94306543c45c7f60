"""Schedule rules for NVIDIA GPUs, in the order in which they are tried: the specific first.

Every rule makes the whole function one kernel, or declines with the reason.
"""

from __future__ import annotations

from ..base import ScheduleRule
from .attention import AttentionRule
from .conv import ConvRule
from .depthwise import DepthwiseRule
from .generic import GenericRule
from .injective import InjectiveRule
from .matmul import MatmulRule
from .pool import PoolRule
from .row import RowRule

RULES: tuple[ScheduleRule, ...] = (
    AttentionRule(),
    MatmulRule(),
    ConvRule(),
    DepthwiseRule(),
    PoolRule(),
    RowRule(),
    InjectiveRule(),
    GenericRule(),
)
