"""Questions about shapes that may be symbolic."""

from __future__ import annotations

import math
from collections import Counter

from tvm import relax, tirx
from tvm.ir import Expr

Shape = tuple[Expr, ...]

BYTES = {"bool": 1, "int8": 1, "uint8": 1, "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2}


def static_shape(shape: Shape | None) -> tuple[int, ...] | None:
    """The shape as integers, or ``None`` if any dimension is symbolic or unknown."""
    if shape is None or not all(isinstance(d, tirx.IntImm) for d in shape):
        return None
    return tuple(int(d) for d in shape)


def _factors(shape: Shape) -> tuple[int, Counter]:
    static = math.prod(int(d) for d in shape if isinstance(d, tirx.IntImm))
    return static, Counter(str(d) for d in shape if not isinstance(d, tirx.IntImm))


def same_size(a: Shape | None, b: Shape | None) -> bool:
    """True if both provably hold the same number of elements."""
    return a is not None and b is not None and _factors(a) == _factors(b)


def same_shape(a: Shape | None, b: Shape | None) -> bool:
    """True if both provably have the same extents, dimension by dimension."""
    if a is None or b is None or len(a) != len(b):
        return False
    return all(_same_extent(x, y) for x, y in zip(a, b, strict=True))


def _same_extent(a: Expr, b: Expr) -> bool:
    # Printing an expression is slow; static extents, nearly all there are, need none.
    if isinstance(a, tirx.IntImm) or isinstance(b, tirx.IntImm):
        return isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm) and a.value == b.value
    return str(a) == str(b)


def smaller(a: Shape | None, b: Shape | None) -> bool:
    """True if ``a`` provably holds fewer elements than ``b`` (its symbols occur in ``b``)."""
    if a is None or b is None or same_size(a, b):
        return False
    (static_a, symbols_a), (static_b, symbols_b) = _factors(a), _factors(b)
    return static_a <= static_b and not symbols_a - symbols_b


def type_bytes(ty: relax.Type) -> int:
    """Bytes of a tensor type, or the sum over a tuple's; symbolic dimensions count as 1."""
    if isinstance(ty, relax.TupleType):
        return sum(type_bytes(field) for field in ty.fields)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return 0
    static, _ = _factors(tuple(ty.shape.values))
    return static * element_bytes(str(ty.dtype))


def element_bytes(dtype: str) -> int:
    """Bytes of one element of ``dtype``."""
    if dtype in BYTES:
        return BYTES[dtype]
    digits = "".join(c for c in dtype if c.isdigit())
    return max(1, int(digits[:2] or 8) // 8) if not dtype.startswith("float8") else 1


def describe(shape: Shape | None) -> str:
    """The shape as users write it, such as ``1x64x384``."""
    if shape is None:
        return "?"
    extents = [str(int(d)) if isinstance(d, tirx.IntImm) else str(d) for d in shape]
    return "x".join(extents) or "scalar"
