"""Arithmetic with scalar constants in a normal form: a polynomial in a few chosen variables.

``0.5 * x * (1 + e)``, ``x * (e * 0.5 + 0.5)`` and ``(x + x * e) / 2`` are one polynomial,
``0.5 x + 0.5 x e``.  Comparing polynomials instead of operators makes a recogniser independent of
how an exporter associates, orders and factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tvm import relax

from ..rewriter import RewriteContext
from .match import close, is_call, is_float, scalar

Powers = tuple[int, ...]  # the exponent of each variable
Polynomial = dict[Powers, float]

MAX_DEGREE = 4
MAX_STEPS = 32  # operators visited; shared operands count each time
MAX_INSIDE = 12  # tensors that the longest decomposition (GELU by tanh) has outside its gate

ARITHMETIC = ("add", "subtract", "multiply", "divide", "negative", "power", "square", "astype")


def uncast(expr: relax.Expr, context: RewriteContext) -> relax.Expr:
    """``expr`` without the casts between floating-point types around it."""
    value = context.value(expr)
    while is_call(value, "astype") and is_float(value) and is_float(value.args[0]):
        expr = value.args[0]
        value = context.value(expr)
    return expr


def polynomial(
    expr: relax.Expr, variables: Sequence[relax.Expr], context: RewriteContext
) -> Polynomial | None:
    """``expr`` as a polynomial in ``variables``, or ``None`` if anything else is in it."""
    return _Reader(variables, context).read(expr)


def equals(found: Polynomial | None, expected: Mapping[Powers, float], dtype: str) -> bool:
    """True if both have the same terms with the same coefficients, within ``dtype``'s rounding."""
    return (
        found is not None
        and found.keys() == expected.keys()
        and all(close(found[term], expected[term], dtype) for term in found)
    )


def inside(expr: relax.Expr, context: RewriteContext) -> Iterator[relax.Expr]:
    """``expr`` and what its arithmetic reads, nearest first: the candidates for a variable.

    The walk goes through what nothing else reads.  The arithmetic of a decomposed operator is such
    a tree, and a long chain of residual additions is not, so this stays short.
    """
    queue, seen = [expr], 0
    while queue and seen < MAX_INSIDE:
        current = queue.pop(0)
        seen += 1
        yield current
        value = context.value(current)
        if seen > 1 and not context.used_once(current):
            continue
        if is_call(value, *ARITHMETIC):
            operands = value.args[:1] if is_call(value, "astype") else value.args
            queue.extend(operand for operand in operands if scalar(operand) is None)


class _Reader:
    def __init__(self, variables: Sequence[relax.Expr], context: RewriteContext) -> None:
        self._context = context
        self._variables = [uncast(variable, context) for variable in variables]
        self._steps = 0

    def read(self, expr: relax.Expr) -> Polynomial | None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            return None
        count = len(self._variables)
        number = scalar(expr)
        if number is not None:
            return {(0,) * count: number} if number else {}
        bare = uncast(expr, self._context)
        for index, variable in enumerate(self._variables):
            if bare.same_as(variable):
                return {tuple(int(i == index) for i in range(count)): 1.0}
        value = self._context.value(bare)
        if not is_call(value, *ARITHMETIC) or not is_float(value):
            return None
        operands = []
        for arg in value.args:
            operand = self.read(arg)
            if operand is None:
                return None
            operands.append(operand)
        return _combine(value, *operands)


def _combine(
    call: relax.Call, left: Polynomial, right: Polynomial | None = None
) -> Polynomial | None:
    if is_call(call, "negative"):
        return {term: -value for term, value in left.items()}
    if is_call(call, "square"):
        return _product(left, left)
    if right is None:
        return None
    if is_call(call, "add"):
        return _sum(left, right, 1.0)
    if is_call(call, "subtract"):
        return _sum(left, right, -1.0)
    if is_call(call, "multiply"):
        return _product(left, right)
    number = _number(right)
    if number is None:
        return None
    if is_call(call, "divide") and number:
        return {term: value / number for term, value in left.items()}
    if is_call(call, "power") and number in (1.0, 2.0, 3.0):
        result: Polynomial | None = left
        for _ in range(int(number) - 1):
            result = None if result is None else _product(result, left)
        return result
    return None


def _number(poly: Polynomial) -> float | None:
    """The value of a polynomial without variables."""
    if not poly:
        return 0.0
    term, value = next(iter(poly.items()))
    return value if len(poly) == 1 and not any(term) else None


def _sum(left: Polynomial, right: Polynomial, sign: float) -> Polynomial:
    result = dict(left)
    for term, value in right.items():
        result[term] = result.get(term, 0.0) + sign * value
    return {term: value for term, value in result.items() if value}


def _product(left: Polynomial, right: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for a, x in left.items():
        for b, y in right.items():
            term = tuple(i + j for i, j in zip(a, b, strict=True))
            if sum(term) > MAX_DEGREE:
                return None
            result[term] = result.get(term, 0.0) + x * y
    return {term: value for term, value in result.items() if value}
