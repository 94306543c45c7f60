"""GELU in the spellings of exporters -> ``relax.nn.gelu``, ``relax.nn.gelu_tanh``.

Exact form (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016)::

    0.5 * x * (1 + erf(x / sqrt(2))),   x * (0.5 + 0.5 * erf(x * 0.7071)),   (x + x * erf(..)) / 2

Its two approximations with the cubic, which are equal to each other::

    0.5 * x * (1 + tanh(u)),   x * sigmoid(2 * u),   u = sqrt(2 / pi) * (x + 0.044715 * x ** 3)
"""

from __future__ import annotations

import math

from tvm import relax

from ..rewriter import RewriteContext
from .gate import Gated, find_gated
from .match import dtype_of
from .polynomial import Polynomial, equals, polynomial
from .readers import Readers

CUBIC = 0.044715
SLOPE = math.sqrt(2.0 / math.pi)
# 0.5 x + 0.5 x t, and x s: polynomials in the input and the gate.
_HALVES: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}
_PRODUCT: Polynomial = {(1, 1): 1.0}


def recompose_gelu(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """Rewrite the root of a decomposed GELU, if what it is made of dies with it."""
    found = find_gated(value, context, ("erf", "tanh", "sigmoid"), _is_gelu)
    if found is None or not readers.die(value, found.leaves(context), context):
        return None
    exact = found.gate.op.name == "relax.erf"
    return relax.op.nn.gelu(found.x) if exact else relax.op.nn.gelu_tanh(found.x)


def _is_gelu(found: Gated, context: RewriteContext) -> bool:
    name = found.gate.op.name
    argument = polynomial(found.gate.args[0], [found.x], context)
    dtype = dtype_of(found.root)
    expected: Polynomial
    if name == "relax.erf":
        expected, outer = {(1,): math.sqrt(0.5)}, _HALVES
    else:
        factor = SLOPE * (2.0 if name == "relax.sigmoid" else 1.0)
        expected = {(1,): factor, (3,): factor * CUBIC}
        outer = _PRODUCT if name == "relax.sigmoid" else _HALVES
    return equals(argument, expected, dtype) and equals(found.outer(context), outer, dtype)
