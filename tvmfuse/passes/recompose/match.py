"""Small questions that the recognisers of decomposed operators ask about Relax values."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm import relax
from tvm.ir import Op

from ..rewriter import RewriteContext, constant

# Exporters print constants with as few as 6 digits (0.044715, 0.7978845), and store them in fp16.
TOLERANCE = {"float64": 1e-5, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}


def is_call(value: relax.Expr, *operators: str) -> bool:
    """True if ``value`` calls one of ``operators`` (written without the ``relax.`` prefix)."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, Op):
        return False
    return value.op.name.removeprefix("relax.") in operators


def inner(expr: relax.Expr, context: RewriteContext, *operators: str) -> relax.Call | None:
    """The call that ``expr`` is bound to, if it is one of ``operators`` and nothing else reads it.

    Being read once is what makes it die when its reader is replaced.
    """
    value = context.value(expr)
    return value if context.used_once(expr) and is_call(value, *operators) else None


def scalar(expr: relax.Expr) -> float | None:
    """The value of a constant of one element, or ``None``."""
    array = constant(expr)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def close(value: float | None, expected: float, dtype: str) -> bool:
    """True if ``value`` is ``expected`` up to what storing it in ``dtype`` may lose."""
    return value is not None and math.isclose(
        value, expected, rel_tol=TOLERANCE.get(dtype, 0.0), abs_tol=0.0
    )


def dtype_of(expr: relax.Expr) -> str:
    """The element type of a tensor, empty for anything else."""
    return str(expr.ty.dtype) if isinstance(expr.ty, relax.TensorType) else ""


def is_float(expr: relax.Expr) -> bool:
    """True for a tensor of floating-point elements."""
    return dtype_of(expr) in TOLERANCE


def same_type(a: relax.Expr, b: relax.Expr) -> bool:
    """True if both have the same shape and dtype, so that one can stand for the other."""
    if not isinstance(a.ty, relax.TensorType) or not isinstance(b.ty, relax.TensorType):
        return False
    if str(a.ty.dtype) != str(b.ty.dtype) or a.ty.ndim != b.ty.ndim:
        return False
    if not isinstance(a.ty.shape, relax.ShapeExpr) or not isinstance(b.ty.shape, relax.ShapeExpr):
        return False
    return all(str(x) == str(y) for x, y in zip(a.ty.shape.values, b.ty.shape.values, strict=True))


def both_orders(call: relax.Call) -> Iterator[tuple[relax.Expr, relax.Expr]]:
    """The two operands of a commutative call, as written and swapped."""
    yield call.args[0], call.args[1]
    yield call.args[1], call.args[0]


def with_scalar(value: relax.Expr, *operators: str) -> tuple[relax.Expr, float] | None:
    """The operand and the constant of ``op(x, c)`` (or of ``op(c, x)``: ``op`` commutes)."""
    if not is_call(value, *operators):
        return None
    for operand, other in both_orders(value):
        number = scalar(other)
        # The constant must not add axes: op(x[4], c[1, 1]) is a tensor of rank 2.
        if number is not None and other.ty.ndim <= operand.ty.ndim and scalar(operand) is None:
            return operand, number
    return None


def scaled(value: relax.Expr) -> tuple[relax.Expr, float] | None:
    """``(x, c)`` where ``value`` is ``x * c``, ``c * x`` or ``x / (1 / c)``."""
    product = with_scalar(value, "multiply")
    if product is not None:
        return product
    if is_call(value, "divide"):
        divisor = scalar(value.args[1])
        if divisor and value.args[1].ty.ndim <= value.args[0].ty.ndim:
            return value.args[0], 1.0 / divisor
    return None


def shifted(value: relax.Expr) -> tuple[relax.Expr, float] | None:
    """``(x, c)`` where ``value`` is ``x + c``, ``c + x`` or ``x - (-c)``."""
    found = with_scalar(value, "add")
    if found is not None:
        return found
    if is_call(value, "subtract"):
        number = scalar(value.args[1])
        if number is not None and value.args[1].ty.ndim <= value.args[0].ty.ndim:
            return value.args[0], -number
    return None
