"""Inputs that a fused kernel is tried on: random ones, and the extremes that break bad fusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from .shapes import static_shape

# What is multiplied onto standard normal values.  "large" stays where sums of squares of float32
# rows do not overflow; overflow itself is covered by "infinite".
SCALES: dict[str, float] = {"random": 1.0, "zeros": 0.0, "large": 1e4, "tiny": 1e-20}
SETS = (*SCALES, "infinite")
KEEPS_INDICES = ("relax.astype", "relax.reshape", "relax.expand_dims", "relax.squeeze")
INDEX_ARGUMENTS = {"relax.take": (0, 1), "relax.gather_elements": (0, 1), "relax.gather_nd": (0, 1)}


def sample(
    func: relax.Function,
    fixed: Mapping[int, np.ndarray],
    kind: str,
    seed: int,
    symbols: Mapping[str, int] | None = None,
) -> list[np.ndarray] | None:
    """Arguments for ``func``, or None if a dimension is symbolic and not in ``symbols``.

    ``fixed`` are arguments known at compile time (weights), by position.  ``kind`` is one of SETS
    and applies to the floating-point arguments; integers are random within [0, 2), or within the
    table for arguments that index one.
    """
    generator = np.random.default_rng(seed)
    limits = _index_limits(func)
    arrays: list[np.ndarray] = []
    for position, param in enumerate(func.params):
        if position in fixed:
            arrays.append(fixed[position])
            continue
        shape = _shape(param.ty, symbols or {})
        if shape is None:
            return None
        arrays.append(_values(generator, shape, str(param.ty.dtype), kind, limits.get(position, 2)))
    return arrays


def _values(
    generator: np.random.Generator, shape: Sequence[int], dtype: str, kind: str, limit: int
) -> np.ndarray:
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if not dtype.startswith(("float", "bfloat")):
        return np.asarray(generator.integers(0, max(1, limit), shape), dtype)
    scale = 1.0 if kind == "infinite" else SCALES[kind]
    if dtype == "float16" and scale > 1.0:
        scale = 1e2
    values = np.asarray(generator.standard_normal(shape) * scale)
    if kind == "infinite" and values.size:
        flat = values.reshape(-1)
        flat[:: max(1, flat.size // 3)] = np.inf
        flat[flat.size // 2] = -np.inf
        flat[-1] = np.nan
    return np.asarray(values, _numpy_dtype(dtype))


def _numpy_dtype(dtype: str) -> np.dtype:
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def _shape(ty: relax.Type, symbols: Mapping[str, int]) -> tuple[int, ...] | None:
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    values = tuple(ty.shape.values)
    known = static_shape(values)
    if known is not None:
        return known
    extents = [symbols.get(str(v)) if static_shape((v,)) is None else int(v) for v in values]
    return (
        None if any(e is None for e in extents) else tuple(int(e) for e in extents if e is not None)
    )


def _index_limits(func: relax.Function) -> dict[int, int]:
    """For parameters that (through casts and reshapes) index a tensor: the extent indexed."""
    source: dict[relax.Var, int] = {param: i for i, param in enumerate(func.params)}
    limits: dict[int, int] = {}
    for block in func.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if not isinstance(value, relax.Call) or not hasattr(value.op, "name"):
                continue
            if value.op.name in INDEX_ARGUMENTS:
                table, index = INDEX_ARGUMENTS[value.op.name]
                _limit(limits, source, value.args[index], _extent(value, value.args[table]))
            elif value.op.name == "relax.index_tensor" and isinstance(value.args[1], relax.Tuple):
                shape = static_shape(tuple(value.args[0].ty.shape.values))
                for axis, index in enumerate(value.args[1].fields):
                    _limit(limits, source, index, None if shape is None else shape[axis])
            elif value.op.name in KEEPS_INDICES and value.args[0] in source:
                source[binding.var] = source[value.args[0]]
    return limits


def _limit(
    limits: dict[int, int], source: dict[relax.Var, int], index: relax.Expr, extent: int | None
) -> None:
    if extent is not None and isinstance(index, relax.Var) and index in source:
        position = source[index]
        limits[position] = min(limits.get(position, extent), extent)


def _extent(call: relax.Call, table: relax.Expr) -> int | None:
    shape = static_shape(tuple(table.ty.shape.values))
    if shape is None:
        return None
    axis = getattr(call.attrs, "axis", None)
    return min(shape) if axis is None else shape[int(axis)]


def constant_value(expr: relax.Expr) -> np.ndarray | None:
    """The array of a constant argument, else None."""
    return expr.value.numpy() if isinstance(expr, GenericConst) else None
