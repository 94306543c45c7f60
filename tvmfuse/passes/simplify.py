"""Remove operators that compute nothing, and merge chains of views and transposes.

Exporters emit many of them (PyTorch's attention alone: broadcast_to to the same shape, reshape of
reshape, permute of permute).  Each is one launch, or an obstacle between two operators that fuse.
"""

from __future__ import annotations

import tvm_ffi
from tvm import relax
from tvm.ir import Op

from .rewriter import RewriteContext, constant, make_constant


def _same_type(a: relax.Expr, b: relax.Expr) -> bool:
    return tvm_ffi.structural_equal(a.ty, b.ty)


_IDENTITY_WHEN_TYPE_IS_KEPT = frozenset(
    {
        "relax.reshape",
        "relax.broadcast_to",
        "relax.astype",
        "relax.expand_dims",
        "relax.squeeze",
        "relax.flatten",
    }
)


def drop_identity(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``broadcast_to(x, shape of x) -> x``, and so for reshape, astype, squeeze, whole slices."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, Op):
        return None
    name = value.op.name
    if name in _IDENTITY_WHEN_TYPE_IS_KEPT and _same_type(value, value.args[0]):
        return value.args[0]
    if name == "relax.permute_dims":
        axes = _axes(value)
        if axes == list(range(len(axes))):
            return value.args[0]
    if name == "relax.nn.dropout":
        return relax.Tuple([value.args[0], relax.op.ones_like(value.args[0])])
    if name == "relax.strided_slice" and _same_type(value, value.args[0]):
        strides = value.args[4] if len(value.args) > 4 else None
        if strides is None or all(int(s.value) == 1 for s in strides.fields):
            return value.args[0]
    return None


def _axes(call: relax.Call) -> list[int]:
    rank = call.args[0].ty.ndim
    if call.attrs.axes is None:
        return list(reversed(range(rank)))
    return [int(a) % rank for a in call.attrs.axes]


def merge_permutes(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``permute(permute(x, a), b) -> permute(x, a[b])``."""
    if not _is(value, "relax.permute_dims"):
        return None
    inner = context.call(value.args[0], "relax.permute_dims")
    if inner is None:
        return None
    first, second = _axes(inner), _axes(value)
    return relax.op.permute_dims(inner.args[0], [first[axis] for axis in second])


_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


def merge_views(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``reshape(reshape(x, a), b) -> reshape(x, b)``; expand_dims, squeeze, flatten alike."""
    if not any(_is(value, name) for name in _VIEWS):
        return None
    for name in _VIEWS:
        inner = context.call(value.args[0], name)
        if inner is not None and isinstance(value.ty.shape, relax.ShapeExpr):
            return relax.op.reshape(inner.args[0], value.ty.shape)
    return None


def cheaper_power(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """``x ** 2 -> x * x``, ``x ** 0.5 -> sqrt(x)``, ``x ** 1 -> x``: exact and without a pow call.

    (For ``-inf ** 0.5`` IEEE pow gives inf and sqrt gives nan, so the base must be known not to
    be negative: the result of abs, of a square or of a sum of squares.)
    """
    if not _is(value, "relax.power"):
        return None
    exponent = constant(value.args[1])
    if exponent is None or exponent.size != 1:
        return None
    base, power = value.args[0], float(exponent.reshape(()))
    if exponent.ndim > base.ty.ndim:
        return None
    if power == 2.0:
        return relax.op.multiply(base, base)
    if power == 1.0:
        return base
    if power == 0.5 and _not_negative(base, context):
        return relax.op.sqrt(base)
    return None


def _not_negative(expr: relax.Expr, context: RewriteContext, depth: int = 4) -> bool:
    value = context.value(expr)
    if depth == 0 or not isinstance(value, relax.Call) or not isinstance(value.op, Op):
        return False
    name = value.op.name
    if name in ("relax.abs", "relax.square", "relax.exp", "relax.variance"):
        return True
    if name == "relax.multiply":
        return value.args[0].same_as(value.args[1])
    if name in ("relax.sum", "relax.mean", "relax.max", "relax.reshape"):
        return _not_negative(value.args[0], context, depth - 1)
    return False


def scalar_constants(value: relax.Expr, context: RewriteContext) -> relax.Expr | None:
    """Constants of one element and broadcast rank become rank 0: ``x * c[1] -> x * c[]``.

    TVM's legalisation turns a rank-0 constant into an immediate and keeps any other as an input.
    """
    if not isinstance(value, relax.Call) or not isinstance(value.op, Op):
        return None
    if value.op.name not in _BINARY or len(value.args) != 2:
        return None
    for side in (0, 1):
        array, other = constant(value.args[side]), value.args[1 - side]
        if array is None or array.ndim == 0 or array.size != 1:
            continue
        if other.ty.ndim >= array.ndim and constant(other) is None:
            args = list(value.args)
            args[side] = make_constant(array.reshape(()))
            return relax.Call(value.op, args, value.attrs)
    return None


_BINARY = frozenset(
    f"relax.{name}" for name in "add subtract multiply divide maximum minimum power".split()
)


def _is(value: relax.Expr, operator: str) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name == operator


SIMPLIFY = (drop_identity, merge_permutes, merge_views, cheaper_power, scalar_constants)
