"""Fold constants: whole constant subgraphs, batch norms and per-channel scales into weights.

Evaluation is NumPy's; ``relax.transform.FoldConstant`` compiles one kernel per operator, which
took 8 s on a text detector whose constants NumPy folds in milliseconds.  It still runs afterwards
for the rare constant operator that is not in the table here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm_ffi
from tvm import relax
from tvm.ir import Op

from ..operators import KIND_OF_OPERATOR, Kind
from .rewriter import RewriteContext, constant, make_constant

# Folding must not blow a small scalar up into a big stored tensor.
MAX_GROWTH_ELEMENTS = 1 << 16


def _shape(call: relax.Call) -> tuple[int, ...]:
    return tuple(int(d) for d in call.ty.shape.values)


_EVALUATE: dict[str, Callable[..., np.ndarray]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.negative": np.negative,
    "relax.sqrt": np.sqrt,
    "relax.rsqrt": lambda x: 1 / np.sqrt(x),
    "relax.abs": np.abs,
    "relax.equal": np.equal,
    "relax.not_equal": np.not_equal,
    "relax.greater": np.greater,
    "relax.greater_equal": np.greater_equal,
    "relax.less": np.less,
    "relax.less_equal": np.less_equal,
    "relax.logical_and": np.logical_and,
    "relax.logical_or": np.logical_or,
    "relax.logical_not": np.logical_not,
    "relax.bitwise_and": np.bitwise_and,
    "relax.bitwise_or": np.bitwise_or,
    "relax.isnan": np.isnan,
    "relax.where": np.where,
}


def _evaluate(call: relax.Call, arrays: list[np.ndarray]) -> np.ndarray | None:
    """The value of ``call`` on constant ``arrays``, or ``None`` if it is not in the table."""
    name = call.op.name
    if name in _EVALUATE:
        with np.errstate(all="ignore"):
            return _EVALUATE[name](*arrays)
    if name == "relax.permute_dims":
        return np.transpose(arrays[0], None if call.attrs.axes is None else list(call.attrs.axes))
    if name in ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten"):
        return arrays[0].reshape(_shape(call))
    if name == "relax.broadcast_to":
        return np.broadcast_to(arrays[0], _shape(call))
    if name == "relax.astype":
        return arrays[0].astype(str(call.ty.dtype))
    if name == "relax.gather_elements":
        return np.take_along_axis(arrays[0], arrays[1], axis=int(call.attrs.axis))
    if name == "relax.take" and call.attrs.axis is not None and call.attrs.mode == "fast":
        index = arrays[1]
        limit = arrays[0].shape[int(call.attrs.axis)]
        if index.size and not (index.min() >= 0 and index.max() < limit):
            return None
        return np.take(arrays[0], index, axis=int(call.attrs.axis))
    if name == "relax.concat":
        return np.concatenate(arrays, axis=int(call.attrs.axis))
    if name == "relax.strided_slice":
        return _slice(call, arrays[0])
    return None


def _slice(call: relax.Call, array: np.ndarray) -> np.ndarray | None:
    groups = [[int(v.value) for v in item.fields] for item in call.args[1:]]
    if len(groups) not in (3, 4) or any(begin < 0 for begin in groups[1]):
        return None
    strides = groups[3] if len(groups) == 4 else [1] * len(groups[0])
    index = [slice(None)] * array.ndim
    for axis, begin, end, stride in zip(*groups[:3], strides, strict=True):
        if end < 0 or stride < 1:
            return None
        index[axis] = slice(begin, end, stride)
    return array[tuple(index)]


def fold_constants(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``op(constants) -> constant``."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, Op):
        return None
    if not isinstance(value.ty, relax.TensorType) or not isinstance(
        value.ty.shape, relax.ShapeExpr
    ):
        return None
    made = _fold_creation(value)
    if made is not None:
        return made
    arrays: list[np.ndarray] = []
    for arg in value.args:
        items = arg.fields if isinstance(arg, relax.Tuple) else [arg]
        for item in items:
            if isinstance(item, relax.ShapeExpr) or item.ty is None:
                continue
            array = constant(item)
            if array is None:
                if isinstance(item.ty, relax.TensorType):
                    return None
                continue
            arrays.append(array)
    if not arrays or not all(hasattr(d, "value") for d in value.ty.shape.values):
        return None
    size = int(np.prod(_shape(value)))
    if size > max(MAX_GROWTH_ELEMENTS, sum(a.size for a in arrays)):
        return None
    result = _evaluate(value, arrays)
    if result is None:
        return None
    return make_constant(np.asarray(result).astype(str(value.ty.dtype)).reshape(_shape(value)))


def _fold_creation(value: relax.Call) -> relax.Expr | None:
    """``arange`` and ``full`` of constants are constants."""
    name = value.op.name
    if not all(hasattr(d, "value") for d in value.ty.shape.values):
        return None
    shape = _shape(value)
    if int(np.prod(shape)) > MAX_GROWTH_ELEMENTS:
        return None
    if name == "relax.arange":
        if not all(hasattr(a, "value") for a in value.args):
            return None
        start, stop, step = (a.value for a in value.args)
        return make_constant(np.arange(start, stop, step).astype(str(value.ty.dtype)))
    fill = _fill(value)
    if fill is not None and int(np.prod(shape)) <= 1024:
        return make_constant(np.broadcast_to(fill, shape))
    return None


def _fill(value: relax.Expr) -> np.ndarray | None:
    """The one element (rank 0) that a creation operator repeats, if it is constant."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, Op):
        return None
    name, dtype = value.op.name, str(value.ty.dtype)
    if name in ("relax.ones", "relax.zeros", "relax.ones_like", "relax.zeros_like"):
        return np.asarray(1 if "ones" in name.split(".")[-1] else 0, dtype)
    if name in ("relax.full", "relax.full_like"):
        fill = constant(value.args[1])
        return None if fill is None or fill.size != 1 else fill.reshape(()).astype(dtype)
    return None


def scalar_fill(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``where(c, full(shape, 0), x) -> where(c, 0, x)``: broadcasting stores nothing."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, Op):
        return None
    if KIND_OF_OPERATOR.get(value.op.name) is not Kind.ELEMENTWISE or len(value.args) < 2:
        return None
    for position, arg in enumerate(value.args):
        fill = _fill(context.value(arg)) if isinstance(arg, relax.Var) else None
        if fill is None:
            continue
        args = list(value.args)
        args[position] = make_constant(fill)
        candidate = context.normalize(relax.Call(value.op, args, value.attrs))
        if tvm_ffi.structural_equal(candidate.ty, value.ty):
            return candidate
    return None
