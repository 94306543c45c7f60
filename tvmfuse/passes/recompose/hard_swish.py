"""Hard-sigmoid and hard-swish of any exporter in one form, ``clip(x / 6 + 1 / 2, 0, 1)``.

Before (PyTorch, Paddle)::

    clip(x + 3, 0, 6) / 6;     x * clip(x + 3, 0, 6) / 6;     x * (clip(x + 3, 0, 6) / 6)

After: the scale is in the line before the clip, where it can be folded into the weights before::

    clip(x * 0.1667 + 0.5, 0, 1);     x * clip(x * 0.1667 + 0.5, 0, 1)

Relax has no operator of its own for them (Howard et al., "Searching for MobileNetV3", ICCV 2019).
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ..rewriter import RewriteContext, make_constant
from .clip import bounds_of
from .gate import Gated, find_gated
from .match import close, dtype_of, is_call
from .polynomial import equals, polynomial
from .readers import Readers


def recompose_hard_swish(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """Bring the root of a hard-sigmoid or hard-swish whose clip is not to [0, 1] into that form."""
    found = find_gated(value, context, ("clip",), _is_hard)
    if found is None or not readers.die(value, found.leaves(context), context):
        return None
    scale = 1.0 / bounds_of(found.gate)[1]
    line = polynomial(found.gate.args[0], [found.x], context)
    dtype = dtype_of(value)

    def number(term: tuple[int, ...]) -> relax.Expr:
        return make_constant(np.asarray(line[term] * scale, dtype))

    scaled = context.emit(relax.op.multiply(found.x, number((1,))))
    shifted = context.emit(relax.op.add(scaled, number((0,))))
    gate = relax.op.clip(shifted, 0.0, 1.0)
    if not _multiplies(found, context):
        return gate
    return relax.op.multiply(found.x, context.emit(gate))


def _is_hard(found: Gated, context: RewriteContext) -> bool:
    low, high = bounds_of(found.gate)
    if low != 0.0 or high is None or not 0.0 < high < math.inf or high == 1.0:
        return False
    if not is_call(found.root, "multiply", "divide"):
        return False
    line = polynomial(found.gate.args[0], [found.x], context)
    if line is None or line.keys() != {(0,), (1,)}:
        return False
    outer, dtype = found.outer(context), dtype_of(found.root)
    return _multiplies(found, context) or equals(outer, {(0, 1): 1.0 / high}, dtype)


def _multiplies(found: Gated, context: RewriteContext) -> bool:
    """True for hard-swish: the clipped line times ``x`` itself."""
    outer = found.outer(context)
    return (
        outer is not None
        and outer.keys() == {(1, 1)}
        and close(outer[1, 1] * bounds_of(found.gate)[1], 1.0, dtype_of(found.root))
    )
