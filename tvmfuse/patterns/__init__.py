"""The built-in pattern library, as one ordered tuple: earlier patterns choose first."""

from ..pattern import Pattern
from .attention import ATTENTION
from .conv import CONVOLUTIONS
from .matmul import MATMUL
from .pool import POOLS
from .rows import ROWS
from .squeeze_excite import SQUEEZE_EXCITE

DEFAULT: tuple[Pattern, ...] = (ATTENTION, SQUEEZE_EXCITE, *CONVOLUTIONS, MATMUL, *ROWS, *POOLS)

__all__ = ["ATTENTION", "CONVOLUTIONS", "DEFAULT", "MATMUL", "POOLS", "ROWS", "SQUEEZE_EXCITE"]
