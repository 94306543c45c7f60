"""Relax in float64 NumPy: the reference that fused modules are held against.

It shares nothing with TVM's legalisation or code generation, so an error there cannot hide in
both sides of a comparison.  Every floating-point value is float64; a cast between floating-point
types keeps every bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import erf
from tvm import relax, tirx
from tvm.ir import GenericConst, Op

Value = np.ndarray | tuple
Array = np.ndarray


def evaluate(mod: tvm.IRModule, inputs: Sequence[Array], function: str = "main") -> list[Array]:
    """The outputs of ``mod[function]`` on ``inputs``; KeyError for an operator not known here."""
    func = mod[function]
    values: dict[relax.Var, Value] = {}
    symbols: dict[str, int] = {}
    for param, array in zip(func.params, inputs, strict=True):
        values[param] = widened(array)
        for extent, actual in zip(param.ty.shape.values, array.shape, strict=True):
            if isinstance(extent, tirx.Var):
                symbols[extent.name] = actual
    result = _expression(func.body, values, symbols)
    return list(result) if isinstance(result, tuple) else [result]


def widened(array: Array) -> Array:
    """Floating-point arrays in float64, others as they are."""
    is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype("float64") if is_float else array


def _expression(expr: relax.Expr, values: dict, symbols: dict[str, int]) -> Value:
    if isinstance(expr, relax.Var):
        return values[expr]
    if isinstance(expr, GenericConst):
        return widened(expr.value.numpy())
    if isinstance(expr, relax.SeqExpr):
        for block in expr.blocks:
            for binding in block.bindings:
                values[binding.var] = _expression(binding.value, values, symbols)
        return _expression(expr.body, values, symbols)
    if isinstance(expr, relax.Tuple):
        return tuple(_expression(item, values, symbols) for item in expr.fields)
    if isinstance(expr, relax.TupleGetItem):
        return _expression(expr.tuple_value, values, symbols)[expr.index]
    if isinstance(expr, relax.ShapeExpr):
        return tuple(_extent(item, symbols) for item in expr.values)
    if isinstance(expr, tirx.IntImm | tirx.FloatImm):
        return np.asarray(expr.value)
    if isinstance(expr, relax.Call) and isinstance(expr.op, Op):
        args = [_expression(arg, values, symbols) for arg in expr.args]
        return OPERATORS[expr.op.name.removeprefix("relax.")](expr.attrs, *args)
    raise KeyError(f"no NumPy form of {type(expr).__name__}: {expr}")


def _extent(extent: tvm.ir.Expr, symbols: dict[str, int]) -> int:
    return int(extent) if isinstance(extent, tirx.IntImm) else symbols[extent.name]


def _plain(function: Callable) -> Callable:
    """An operator without attributes."""
    return lambda attrs, *args: function(*args)


def _axes(attrs: object, name: str = "axis") -> tuple[int, ...] | None:
    axes = getattr(attrs, name)
    if axes is None:
        return None
    return (int(axes),) if isinstance(axes, int) else tuple(int(a) for a in axes)


def _reduction(function: Callable) -> Callable:
    return lambda attrs, x: function(x, axis=_axes(attrs), keepdims=bool(attrs.keepdims))


def _softmax(attrs: object, x: Array) -> Array:
    exponent = np.exp(x - x.max(axis=int(attrs.axis), keepdims=True))
    return exponent / exponent.sum(axis=int(attrs.axis), keepdims=True)


def _layer_norm(attrs: object, x: Array, gamma: Array, beta: Array) -> Array:
    axes = _axes(attrs, "axes")
    centred = x - x.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(x.var(axis=axes, keepdims=True) + float(attrs.epsilon))
    return centred / deviation * gamma + beta


def _rms_norm(attrs: object, x: Array, gamma: Array) -> Array:
    square = np.mean(x * x, axis=_axes(attrs, "axes"), keepdims=True)
    return x / np.sqrt(square + float(attrs.epsilon)) * gamma


def _batch_norm(attrs: object, x: Array, *statistics: Array) -> tuple:
    shape = [1] * x.ndim
    shape[int(attrs.axis)] = -1
    gamma, beta, mean, variance = (item.reshape(shape) for item in statistics)
    normal = (x - mean) / np.sqrt(variance + float(attrs.epsilon)) * gamma + beta
    return normal, statistics[2], statistics[3]


def _windows(x: Array, size: Sequence[int], attrs: object, fill: float) -> Array:
    """``[N, C, spatial..., window...]`` of channels-first ``x``."""
    rank = len(size)
    padding = [int(p) for p in attrs.padding]
    strides = [int(s) for s in attrs.strides]
    dilation = [int(d) for d in attrs.dilation]
    before, after = padding[:rank], padding[rank:]
    widths = [(0, 0), (0, 0), *zip(before, after, strict=True)]
    span = [(extent - 1) * step + 1 for extent, step in zip(size, dilation, strict=True)]
    padded = np.pad(x, widths, constant_values=fill)
    axes = tuple(range(2, 2 + rank))
    view = sliding_window_view(padded, span, axis=axes)
    steps = [slice(None, None, s) for s in strides] + [slice(None, None, d) for d in dilation]
    return view[(slice(None), slice(None), *steps)]


def _to_first(layout: str, want: str) -> list[int]:
    return [layout.index(letter) for letter in want]


def _conv(attrs: object, x: Array, weight: Array) -> Array:
    spatial = "".join(letter for letter in str(attrs.data_layout) if letter not in "NC")
    x = x.transpose(_to_first(str(attrs.data_layout), "NC" + spatial))
    weight = weight.transpose(_to_first(str(attrs.kernel_layout), "OI" + spatial))
    groups, rank = int(attrs.groups), len(spatial)
    view = _windows(x, weight.shape[2:], attrs, 0.0)
    batch, channels = view.shape[:2]
    view = view.reshape(batch, groups, channels // groups, *view.shape[2:])
    weight = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    pixels, taps = "uvw"[:rank], "xyz"[:rank]
    result = np.einsum(f"ngi{pixels}{taps},goi{taps}->ngo{pixels}", view, weight)
    result = result.reshape(batch, -1, *result.shape[3:])
    out = str(attrs.out_layout or attrs.data_layout)
    return result.transpose(_to_first("NC" + spatial, out))


def _pool(largest: bool) -> Callable:
    def pool(attrs: object, x: Array) -> Array:
        layout = str(attrs.layout)
        spatial = "".join(letter for letter in layout if letter not in "NC")
        first = x.transpose(_to_first(layout, "NC" + spatial))
        size, window = [int(s) for s in attrs.pool_size], tuple(range(-len(spatial), 0))
        if largest:
            result = _windows(first, size, attrs, -np.inf).max(axis=window)
        else:
            ones = np.ones_like(first)
            count = _windows(ones, size, attrs, float(attrs.count_include_pad)).sum(axis=window)
            result = _windows(first, size, attrs, 0.0).sum(axis=window) / count
        return result.transpose(_to_first("NC" + spatial, layout))

    return pool


def _gelu(attrs: object, x: Array) -> Array:
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def _gelu_tanh(attrs: object, x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _astype(attrs: object, x: Array) -> Array:
    return x.astype("float64" if "float" in str(attrs.dtype) else str(attrs.dtype))


def _strided_slice(attrs: object, x: Array, axes: tuple, begin: tuple, end: tuple, *step) -> Array:
    index = [slice(None)] * x.ndim
    steps = step[0] if step else [1] * len(axes)
    for axis, first, last, stride in zip(axes, begin, end, steps, strict=True):
        index[int(axis)] = slice(int(first), int(last), int(stride))
    return x[tuple(index)]


def _split(attrs: object, x: Array) -> tuple:
    parts = attrs.indices_or_sections
    where = int(parts) if isinstance(parts, int | tirx.IntImm) else [int(p) for p in parts]
    return tuple(np.split(x, where, axis=int(attrs.axis)))


OPERATORS: dict[str, Callable] = {
    "add": _plain(np.add),
    "subtract": _plain(np.subtract),
    "multiply": _plain(np.multiply),
    "divide": _plain(np.divide),
    "maximum": _plain(np.maximum),
    "minimum": _plain(np.minimum),
    "power": _plain(np.power),
    "greater": _plain(np.greater),
    "less": _plain(np.less),
    "equal": _plain(np.equal),
    "logical_not": _plain(np.logical_not),
    "logical_and": _plain(np.logical_and),
    "where": _plain(np.where),
    "exp": _plain(np.exp),
    "log": _plain(np.log),
    "sin": _plain(np.sin),
    "cos": _plain(np.cos),
    "tanh": _plain(np.tanh),
    "erf": _plain(erf),
    "sqrt": _plain(np.sqrt),
    "rsqrt": _plain(lambda x: 1 / np.sqrt(x)),
    "abs": _plain(np.abs),
    "negative": _plain(np.negative),
    "square": _plain(np.square),
    "sigmoid": _plain(_sigmoid),
    "clip": _plain(np.clip),
    "nn.relu": _plain(lambda x: np.maximum(x, 0)),
    "nn.silu": _plain(lambda x: x * _sigmoid(x)),
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.leakyrelu": lambda attrs, x: np.where(x > 0, x, x * float(attrs.alpha)),
    "astype": _astype,
    "full": lambda attrs, shape, fill: np.full(shape, fill),
    "reshape": _plain(np.reshape),
    "squeeze": lambda attrs, x: np.squeeze(x, _axes(attrs)),
    "expand_dims": lambda attrs, x: np.expand_dims(x, _axes(attrs)),
    "flatten": _plain(np.ravel),
    "broadcast_to": _plain(np.broadcast_to),
    "permute_dims": lambda attrs, x: np.transpose(x, _axes(attrs, "axes")),
    "concat": lambda attrs, parts: np.concatenate(parts, int(attrs.axis)),
    "split": _split,
    "strided_slice": _strided_slice,
    "take": lambda attrs, x, index: np.take(x, index, axis=int(attrs.axis)),
    "matmul": lambda attrs, a, b: np.matmul(a, b),
    "sum": _reduction(np.sum),
    "mean": _reduction(np.mean),
    "max": _reduction(np.max),
    "min": _reduction(np.min),
    "variance": _reduction(np.var),
    "nn.softmax": _softmax,
    "nn.log_softmax": lambda attrs, x: np.log(_softmax(attrs, x)),
    "nn.layer_norm": _layer_norm,
    "nn.rms_norm": _rms_norm,
    "nn.batch_norm": _batch_norm,
    "nn.conv1d": _conv,
    "nn.conv2d": _conv,
    "nn.conv3d": _conv,
    "nn.max_pool1d": _pool(largest=True),
    "nn.max_pool2d": _pool(largest=True),
    "nn.avg_pool2d": _pool(largest=False),
    "nn.adaptive_avg_pool2d": lambda attrs, x: x.mean(
        axis=tuple(str(attrs.layout).index(letter) for letter in "HW"), keepdims=True
    ),
}
