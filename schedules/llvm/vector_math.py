"""Transcendental functions as arithmetic, so that LLVM can vectorise the loops they stand in.

LLVM keeps ``exp``, ``erf`` and ``tanh`` as scalar library calls, sixteen of them for each
512-bit vector.  This pass replaces them by branch-free float32 expressions *before* TVM lowers
its intrinsics.  The shapes of the approximations are the classical ones (Cody and Waite,
"Software Manual for the Elementary Functions": range reduction and scaling by exponent bits; a
clamped odd rational function for erf and tanh, as in Eigen and XLA); the coefficients are our
own fits: least squares re-weighted by the error until it levels out (Lawson), in float64, then
rounded to float32.

Largest error against float64, over all bit patterns (``tests/test_vector_math.py``); NaN gives
NaN, and speed is nanoseconds an element in a vector loop with AVX-512, against the library call:

=========  ============================  ==============================  ============
function   error                         special values                  speed
=========  ============================  ==============================  ============
exp        1 ulp                         subnormal results, 0, infinity  0.23 for 2.0
sigmoid    3 ulp; 3e-39 below x = -88.7  0 and 1 at the infinities       0.29 for 2.3
tanh       5 ulp, 2.7e-7 absolute        -1 and 1 at the infinities      0.22 for 4.6
erf        6 ulp, 3.2e-7 absolute        -1 and 1 at the infinities      0.24 for 6.2
=========  ============================  ==============================  ============
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, tirx

from ..analysis import variables_of

# exp(r) = 1 + r + r^2 * Q(r) for |r| <= log(2) / 2; relative error of the fit 3.3e-9.
_EXP = (
    0.4999999403953552,
    0.16666515171527863,
    0.04166845604777336,
    0.008369418792426586,
    0.0013813142431899905,
)
_LOG2_E = 1.4426950408889634
# log(2) in two parts: the first has 9 significant bits, so n * part is exact for |n| < 2^15.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
# Beyond these exp is 0 and infinity in float32; the clamp keeps the exponent arithmetic in range.
_EXP_LOWEST, _EXP_HIGHEST = -104.0, 89.0

# tanh(x) = x * P(x^2) / Q(x^2) for |x| <= 9.02, where tanh rounds to 1; fit 2.1e-8.
_TANH_CLAMP = 9.02
_TANH_P = (
    1.0,
    0.13379734754562378,
    0.0034940531477332115,
    2.0583756850101054e-05,
    1.3319398917133185e-08,
)
_TANH_Q = (
    1.0,
    0.46713048219680786,
    0.025871146470308304,
    0.0003283121914137155,
    7.762164955238404e-07,
)
# erf(x) = x * P(x^2) / Q(x^2) for |x| <= 3.9, where erf rounds to 1; fit 1.4e-8.
_ERF_CLAMP = 3.9
_ERF_P = (
    1.1283791065216064,
    0.18965250253677368,
    0.05266622081398964,
    0.0037377469707280397,
    0.00028505121008493006,
    2.066610477413633e-06,
)
_ERF_Q = (
    1.0,
    0.5014079213142395,
    0.11381307244300842,
    0.01491306722164154,
    0.0011572360526770353,
    3.8270882214419544e-05,
)


def vectorize_math(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace the scalar float32 calls of exp, erf, tanh and sigmoid in ``func``.

    Before::

        for i in T.vectorized(16): b[i] = T.exp(a[i])

    After::

        for i in T.vectorized(16): b[i] = T.Let(polynomial(r) * 2^n, where={n: ..., r: ...})

    A float32 division by a value that is the same for the whole vector becomes a multiplication
    by its reciprocal, too.  Takes scheduled and unscheduled functions; calls of other dtypes and
    vector calls stay.  ``func`` is left as it was, and is returned itself if nothing changes.
    """

    def rewrite(call: ir.Call) -> ir.Expr:
        # A structural map meets every kind of call; only operators with one float32 operand count.
        expression = _REWRITES.get(call.op.name) if isinstance(call.op, ir.Op) else None
        if expression is None or str(call.ty.dtype) != "float32":
            return call
        return expression(call.args[0])

    # Divisions first: those that the rewrites bring are none that a loop could share.
    divided = tvm_ffi.structural_map(func, (tirx.BufferStore, _multiply_by_reciprocals))
    return tvm_ffi.structural_map(divided, (ir.Call, rewrite))


def _multiply_by_reciprocals(store: tirx.BufferStore) -> tirx.BufferStore:
    """Turn ``a / b`` into ``a * (1 / b)`` where ``b`` is the same along the vector.

    The vector runs along the last axis of what is stored.  LLVM computes 1 / b once for the
    loop; it may not do this step itself, since the result can differ by one more rounding (and
    is infinite where 1 / b overflows, for b of magnitudes below 2^-128).
    """
    if not store.indices:
        return store
    along = variables_of(store.indices[-1])

    def varies(expression: ir.Expr) -> bool:
        return any(
            variable.same_as(other) for variable in variables_of(expression) for other in along
        )

    def rewrite(division: tirx.Div) -> ir.Expr:
        if str(division.ty.dtype) != "float32" or not varies(division.a) or varies(division.b):
            return division
        if isinstance(division.b, tirx.FloatImm):
            divisor = division.b.value
            usable = 2.0**-126 < abs(divisor) < 2.0**126
            return division.a * _float(1.0 / divisor) if usable else division
        return division.a * (_float(1.0) / division.b)

    return tvm_ffi.structural_map(store, (tirx.Div, rewrite))


def _float(value: float) -> tirx.FloatImm:
    return tirx.const(value, "float32")


def _let(value: ir.Expr, name: str, body: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """``body`` of a variable that holds ``value``, so that the value is computed once."""
    variable = tirx.Var(name, str(value.ty.dtype))
    return tirx.Let(variable, value, body(variable))


def _clamp(x: ir.Expr, lowest: float, highest: float) -> ir.Expr:
    """``x`` within the bounds; NaN stays NaN, since both comparisons are then false."""
    at_least = tirx.Select(x < _float(lowest), _float(lowest), x)
    return _let(at_least, "bounded", lambda y: tirx.Select(y > _float(highest), _float(highest), y))


def _polynomial(coefficients: Sequence[float], x: ir.Expr) -> ir.Expr:
    """Horner's scheme; the coefficients start at the constant term."""
    result: ir.Expr = _float(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + _float(coefficient)
    return result


def _power_of_two(exponent: ir.Expr) -> ir.Expr:
    """2^exponent in float32 for an int32 exponent in [-126, 127], from its bit pattern."""
    return tirx.reinterpret("float32", (exponent + 127) << 23)


def _exp(x: ir.Expr) -> ir.Expr:
    """exp(x) = 2^n * exp(r) with n = round(x / log 2) and r = x - n * log 2.

    The scale is applied as two factors, since 2^n alone overflows at n = 128 and is subnormal
    below n = -126, both of which finite results need.
    """

    def scaled(value: ir.Expr, n: ir.Expr) -> ir.Expr:
        half = n >> 1
        return _let(half, "half", lambda h: value * _power_of_two(h) * _power_of_two(n - h))

    def reduced(bounded: ir.Expr, n: ir.Expr) -> ir.Expr:
        remainder = (bounded - n * _float(_LN2_HIGH)) - n * _float(_LN2_LOW)
        return _let(
            remainder,
            "r",
            lambda r: _let(
                tirx.Cast("int32", n),
                "n",
                lambda k: scaled(_polynomial(_EXP, r) * (r * r) + r + _float(1.0), k),
            ),
        )

    def rounded(bounded: ir.Expr) -> ir.Expr:
        n = tirx.floor(bounded * _float(_LOG2_E) + _float(0.5))
        return _let(n, "n_float", lambda k: reduced(bounded, k))

    return _let(x, "x", lambda y: _let(_clamp(y, _EXP_LOWEST, _EXP_HIGHEST), "bounded_x", rounded))


def _sigmoid(x: ir.Expr) -> ir.Expr:
    """sigmoid(x) = 1 / (1 + exp(-x))."""
    return _float(1.0) / (_float(1.0) + _exp(_float(0.0) - x))


def _odd_rational(
    x: ir.Expr, bound: float, numerator: Sequence[float], denominator: Sequence[float]
) -> ir.Expr:
    """y * P(y^2) / Q(y^2) within [-1, 1], for y = x clamped to [-bound, bound]."""

    def ratio(y: ir.Expr, square: ir.Expr) -> ir.Expr:
        quotient = y * _polynomial(numerator, square) / _polynomial(denominator, square)
        return _let(quotient, "quotient", lambda q: _clamp(q, -1.0, 1.0))

    def bounded(y: ir.Expr) -> ir.Expr:
        return _let(y * y, "square", lambda square: ratio(y, square))

    return _let(x, "x", lambda z: _let(_clamp(z, -bound, bound), "bounded_x", bounded))


def _tanh(x: ir.Expr) -> ir.Expr:
    return _odd_rational(x, _TANH_CLAMP, _TANH_P, _TANH_Q)


def _erf(x: ir.Expr) -> ir.Expr:
    return _odd_rational(x, _ERF_CLAMP, _ERF_P, _ERF_Q)


_REWRITES: dict[str, Callable[[ir.Expr], ir.Expr]] = {
    "tirx.exp": _exp,
    "tirx.erf": _erf,
    "tirx.tanh": _tanh,
    "tirx.sigmoid": _sigmoid,
}
