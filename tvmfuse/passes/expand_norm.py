"""Norms written out in basic operators: TVM has no float64 code for the operators themselves."""

from __future__ import annotations

import math

from tvm import relax

from ..shapes import static_shape


def expand_norm(call: relax.Call) -> relax.Expr | None:
    """The definition of a norm operator (Ba et al. 2016; Zhang and Sennrich 2019; Wu and He 2018).

    Before::

        y = layer_norm(x, gamma, beta)

    After::

        d = x - mean(x);  y = d / sqrt(mean(d * d) + eps) * gamma + beta

    ``None`` for any other operator, and for a group norm of symbolic shape.
    """
    name = call.op.name
    if name == "relax.nn.layer_norm":
        x, gamma, beta = call.args
        normal = _normalised(x, [int(a) for a in call.attrs.axes], call.attrs.epsilon, True)
        return _affine(normal, call.attrs, gamma, beta)
    if name == "relax.nn.rms_norm":
        x, weight = call.args
        normal = _normalised(x, [int(a) for a in call.attrs.axes], call.attrs.epsilon, False)
        return relax.op.multiply(normal, weight)
    if name == "relax.nn.instance_norm":
        x, gamma, beta = call.args
        normal = _normalised(x, [int(a) for a in call.attrs.axes], call.attrs.epsilon, True)
        shape = [1] * x.ty.ndim
        shape[int(call.attrs.channel_axis)] = -1
        return _affine(normal, call.attrs, _reshape(gamma, shape), _reshape(beta, shape))
    if name == "relax.nn.group_norm":
        return _group_norm(call)
    return None


def _group_norm(call: relax.Call) -> relax.Expr | None:
    x, gamma, beta = call.args
    shape = static_shape(tuple(x.ty.shape.values))
    if shape is None:
        return None
    axis, groups = int(call.attrs.channel_axis) % len(shape), int(call.attrs.num_groups)
    split = [*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]]
    axes = [axis + 1, *(int(a) % len(shape) + 1 for a in call.attrs.axes)]
    normal = _normalised(_reshape(x, split), axes, call.attrs.epsilon, True)
    column = [1] * len(shape)
    column[axis] = shape[axis]
    result = _reshape(normal, list(shape))
    return _affine(result, call.attrs, _reshape(gamma, column), _reshape(beta, column))


def _reshape(value: relax.Expr, shape: list[int]) -> relax.Expr:
    if shape.count(-1):
        rest = math.prod(d for d in shape if d > 0)
        size = static_shape(tuple(value.ty.shape.values))
        shape = [math.prod(size) // rest if d < 0 and size else d for d in shape]
    return relax.op.reshape(value, shape)


def _normalised(x: relax.Expr, axes: list[int], epsilon: float, centre: bool) -> relax.Expr:
    centred = relax.op.subtract(x, relax.op.mean(x, axes, keepdims=True)) if centre else x
    power = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    shifted = relax.op.add(power, relax.const(float(epsilon), "float64"))
    return relax.op.divide(centred, relax.op.sqrt(shifted))


def _affine(normal: relax.Expr, attrs: object, gamma: relax.Expr, beta: relax.Expr) -> relax.Expr:
    if getattr(attrs, "scale", True):
        normal = relax.op.multiply(normal, gamma)
    return relax.op.add(normal, beta) if getattr(attrs, "center", True) else normal
