"""Hard-sigmoid and hard-swish of any exporter in one form, ``clip(x / 6 + 1 / 2, 0, 1)``.

Before (PyTorch, Paddle)::

    clip(x + 3, 0, 6) / 6;     x * clip(x + 3, 0, 6) / 6;     x * (clip(x + 3, 0, 6) / 6)

After: the scale is in the line before the clip, where it can be folded into the weights before::

    clip(x * 0.1667 + 0.5, 0, 1);     x * clip(x * 0.1667 + 0.5, 0, 1)

Relax has no operator of its own for them (Howard et al., "Searching for MobileNetV3", ICCV 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ..rewriter import RewriteContext, make_constant
from .clip import bounds_of
from .gate import Gated, find_gated
from .match import dtype_of, is_call
from .polynomial import equals, polynomial
from .readers import Readers


@dataclass(frozen=True)
class _Hard:
    """``clip(slope * x + offset, 0, 1)``, times ``x`` if it is hard-swish."""

    slope: float
    offset: float
    times_x: bool


def recompose_hard_swish(
    value: relax.Expr, context: RewriteContext, readers: Readers
) -> relax.Expr | None:
    """Bring the root of a hard-sigmoid or hard-swish whose clip is not to [0, 1] into that form."""
    found = find_gated(value, context, ("clip",), lambda f, c: _read(f, c) is not None)
    if found is None or not readers.die(value, found.leaves(context), context):
        return None
    hard = _read(found, context)
    if hard is None:
        return None
    slope, offset = (
        make_constant(np.asarray(number, dtype_of(value))) for number in (hard.slope, hard.offset)
    )
    scaled = context.emit(relax.op.multiply(found.x, slope))
    gate = relax.op.clip(context.emit(relax.op.add(scaled, offset)), 0.0, 1.0)
    return relax.op.multiply(found.x, context.emit(gate)) if hard.times_x else gate


def _read(found: Gated, context: RewriteContext) -> _Hard | None:
    low, high = bounds_of(found.gate)
    if low != 0.0 or high is None or not 0.0 < high < math.inf or high == 1.0:
        return None
    if not is_call(found.root, "multiply", "divide"):
        return None
    line = polynomial(found.gate.args[0], [found.x], context)
    if line is None or line.keys() != {(0,), (1,)}:
        return None
    outer, dtype = found.outer(context), dtype_of(found.root)
    times_x = equals(outer, {(1, 1): 1.0 / high}, dtype)
    if not times_x and not equals(outer, {(0, 1): 1.0 / high}, dtype):
        return None
    return _Hard(line[1,] / high, line[0,] / high, times_x)
