"""Clip as the ONNX importer leaves it -> ``relax.clip``, ``relax.nn.relu``.

Before (the bounds went through ``where(isnan(c), inf, c)``, which constant folding has removed)::

    a = call_tir(maximum, (x, 0));  b = call_tir(minimum, (a, 6))

After::

    b = clip(x, 0, 6)

The two ``call_tir`` are topi functions that no table of operators knows; they are recognised by
what their block stores, not by their names.
"""

from __future__ import annotations

import math

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir import TensorLoad

from ..rewriter import Rewrite, RewriteContext, make_constant
from .match import inner, is_call, is_float, scalar, with_scalar


def tir_extremes(mod: tvm.IRModule) -> Rewrite:
    """A rewrite of ``call_tir`` of the module's elementwise max and min functions to Relax's."""
    found = {
        gv.name_hint: operands
        for gv, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and (operands := _extreme(func)) is not None
    }

    def recognise(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
        if not is_call(value, "call_tir"):
            return None
        operands = found.get(value.args[0].name_hint)
        if operands is None:
            return None
        args = list(value.args[1].fields)
        operator = relax.op.maximum if operands[0] is tirx.Max else relax.op.minimum
        sides = [
            args[side] if isinstance(side, int) else make_constant(side) for side in operands[1:]
        ]
        result = context.normalize(operator(*sides))
        return result if tvm_ffi.structural_equal(result.ty, value.ty) else None

    return recognise


Side = int | np.ndarray  # the position of a parameter, or an immediate


def _extreme(func: tirx.PrimFunc) -> tuple[type, Side, Side] | None:
    """``(Max or Min, side, side)`` if ``func`` computes that of its inputs elementwise."""
    block = _only_block(func.body)
    if block is None or not isinstance(block.body, tirx.BufferStore):
        return None
    store = block.body
    iterations = [iteration.var for iteration in block.iter_vars]
    if len(store.indices) != len(iterations) or not isinstance(store.value, tirx.Max | tirx.Min):
        return None
    if not all(i.same_as(v) for i, v in zip(store.indices, iterations, strict=True)):
        return None
    if not store.buffer.same_as(func.params[-1]) or not _covers(block, store.buffer):
        return None
    sides: list[Side] = []
    for operand in (store.value.a, store.value.b):
        side = _side(operand, func, iterations)
        if side is None:
            return None
        sides.append(side)
    return type(store.value), sides[0], sides[1]


def _side(operand: tirx.Expr, func: tirx.PrimFunc, iterations: list[tirx.Var]) -> Side | None:
    if isinstance(operand, tirx.FloatImm | tirx.IntImm):
        return np.asarray(operand.value, str(operand.ty.dtype))
    if not isinstance(operand, TensorLoad):
        return None
    # A rank-0 buffer is read without an index, any other exactly where the result is written.
    if len(operand.indices) not in (0, len(iterations)):
        return None
    if not all(i.same_as(v) for i, v in zip(operand.indices, iterations, strict=False)):
        return None
    for position, param in enumerate(func.params[:-1]):
        if operand.source.same_as(param):
            return position
    return None


def _covers(block: s_tir.SBlock, buffer: tirx.Buffer) -> bool:
    return len(buffer.shape) == len(block.iter_vars) and all(
        str(iteration.dom.extent) == str(extent)
        for iteration, extent in zip(block.iter_vars, buffer.shape, strict=True)
    )


def _only_block(body: tirx.Stmt) -> s_tir.SBlock | None:
    """The one block inside the root block and its loops."""
    found = None
    while True:
        if isinstance(body, s_tir.SBlockRealize):
            found = body.block
            body = found.body
        elif isinstance(body, tirx.For):
            body = body.body
        else:
            return found


def drop_unbounded(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``maximum(x, -inf) -> x``, ``minimum(x, inf) -> x``: an ONNX bound that is not set."""
    for operator, bound in (("maximum", -math.inf), ("minimum", math.inf)):
        found = with_scalar(value, operator)
        if found is not None and found[1] == bound:
            return found[0]
    return None


def _bounded(value: relax.Expr, operator: str) -> tuple[relax.Expr, float] | None:
    """``(x, bound)`` of a maximum or minimum with a constant; relu is a maximum."""
    if operator == "maximum" and is_call(value, "nn.relu"):
        return value.args[0], 0.0
    return with_scalar(value, operator)


def recompose_clip(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``minimum(maximum(x, lo), hi)`` or the other way round ``-> clip(x, lo, hi)``."""
    for outer, other in (("minimum", "maximum"), ("maximum", "minimum")):
        found = _bounded(value, outer)
        if found is None:
            continue
        call = inner(found[0], context, "maximum", "minimum", "nn.relu")
        within = _bounded(call, other) if call is not None else None
        if within is None:
            continue
        low, high = (within[1], found[1]) if outer == "minimum" else (found[1], within[1])
        # With low > high the two orders differ, and clip is only one of them.  NaN fails too.
        if low <= high:
            return relax.op.clip(within[0], *_bounds(value, low, high))
    return None


def _bounds(like: relax.Expr, low: float, high: float) -> tuple[float, float] | tuple[int, int]:
    return (low, high) if is_float(like) else (int(low), int(high))


def recompose_relu(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``maximum(x, 0) -> relu(x)``; ``relu6(x) -> clip(x, 0, 6)``, its one other spelling."""
    if is_call(value, "nn.relu6"):
        return relax.op.clip(value.args[0], *_bounds(value, 0.0, 6.0))
    found = with_scalar(value, "maximum")
    if found is not None and found[1] == 0.0 and is_float(value):
        return relax.op.nn.relu(found[0])
    if is_call(value, "clip") and is_float(value) and bounds_of(value) == (0.0, math.inf):
        return relax.op.nn.relu(value.args[0])
    return None


def bounds_of(clip: relax.Call) -> tuple[float | None, float | None]:
    """The bounds of a ``relax.clip``; ``None`` where one is not constant."""
    return _immediate(clip.args[1]), _immediate(clip.args[2])


def _immediate(expr: relax.Expr) -> float | None:
    """A bound of ``relax.clip``: an immediate, or a constant."""
    if isinstance(expr, tirx.FloatImm | tirx.IntImm):
        return float(expr.value)
    inside = getattr(expr, "value", None)
    if isinstance(inside, tirx.FloatImm | tirx.IntImm):
        return float(inside.value)
    return scalar(expr)
