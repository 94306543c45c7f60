"""The built-in pattern library, as one ordered tuple: earlier patterns choose first."""

from ..pattern import Pattern
from .attention import ATTENTION
from .conv import CONVOLUTIONS
from .matmul import MATMUL
from .pool import POOLS
from .rows import ROWS

DEFAULT: tuple[Pattern, ...] = (ATTENTION, *CONVOLUTIONS, MATMUL, *ROWS, *POOLS)

__all__ = ["ATTENTION", "CONVOLUTIONS", "DEFAULT", "MATMUL", "POOLS", "ROWS"]
