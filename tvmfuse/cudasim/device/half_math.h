// Operators and functions that __half and __nv_bfloat16 share: float inside, one rounding out.
#pragma once
#include <cmath>

#include "bfloat16.h"
#include "half.h"

#define CUDASIM_ARITHMETIC(Type, op)                                                        \
  CUDASIM_INLINE Type operator op(Type a, Type b) { return Type(float(a) op float(b)); }    \
  CUDASIM_INLINE Type& operator op##=(Type& a, Type b) { return a = a op b; }
#define CUDASIM_COMPARISON(Type, op, name)                                                  \
  CUDASIM_INLINE bool operator op(Type a, Type b) { return float(a) op float(b); }          \
  inline bool name(Type a, Type b) { return float(a) op float(b); }
#define CUDASIM_UNARY(Type, name, expression)                                               \
  inline Type name(Type a) {                                                                \
    float x = a;                                                                            \
    return Type(expression);                                                                \
  }

#define CUDASIM_HALF_FUNCTIONS(Type)                                                        \
  CUDASIM_ARITHMETIC(Type, +)                                                               \
  CUDASIM_ARITHMETIC(Type, -)                                                               \
  CUDASIM_ARITHMETIC(Type, *)                                                               \
  CUDASIM_ARITHMETIC(Type, /)                                                               \
  CUDASIM_COMPARISON(Type, <, __hlt)                                                        \
  CUDASIM_COMPARISON(Type, >, __hgt)                                                        \
  CUDASIM_COMPARISON(Type, <=, __hle)                                                       \
  CUDASIM_COMPARISON(Type, >=, __hge)                                                       \
  CUDASIM_COMPARISON(Type, ==, __heq)                                                       \
  CUDASIM_COMPARISON(Type, !=, __hne)                                                       \
  inline Type operator-(Type a) {                                                           \
    a.bits ^= 0x8000;                                                                       \
    return a;                                                                               \
  }                                                                                         \
  inline Type __hneg(Type a) { return -a; }                                                 \
  inline Type __habs(Type a) {                                                              \
    a.bits &= 0x7fff;                                                                       \
    return a;                                                                               \
  }                                                                                         \
  inline Type __hadd(Type a, Type b) { return a + b; }                                      \
  inline Type __hsub(Type a, Type b) { return a - b; }                                      \
  inline Type __hmul(Type a, Type b) { return a * b; }                                      \
  inline Type __hdiv(Type a, Type b) { return a / b; }                                      \
  inline Type __hfma(Type a, Type b, Type c) {                                              \
    return Type(double(float(a)) * double(float(b)) + double(float(c)));                    \
  }                                                                                         \
  inline Type __hmax(Type a, Type b) { return Type(fmaxf(a, b)); }                          \
  inline Type __hmin(Type a, Type b) { return Type(fminf(a, b)); }                          \
  inline bool __hisnan(Type a) { return std::isnan(float(a)); }                             \
  inline int __hisinf(Type a) { return std::isinf(float(a)); }                              \
  CUDASIM_UNARY(Type, hexp, expf(x))                                                        \
  CUDASIM_UNARY(Type, hexp2, exp2f(x))                                                      \
  CUDASIM_UNARY(Type, hexp10, powf(10.0f, x))                                               \
  CUDASIM_UNARY(Type, hlog, logf(x))                                                        \
  CUDASIM_UNARY(Type, hlog2, log2f(x))                                                      \
  CUDASIM_UNARY(Type, hlog10, log10f(x))                                                    \
  CUDASIM_UNARY(Type, hsqrt, sqrtf(x))                                                      \
  CUDASIM_UNARY(Type, hrsqrt, 1.0f / sqrtf(x))                                              \
  CUDASIM_UNARY(Type, hrcp, 1.0f / x)                                                       \
  CUDASIM_UNARY(Type, hsin, sinf(x))                                                        \
  CUDASIM_UNARY(Type, hcos, cosf(x))                                                        \
  CUDASIM_UNARY(Type, htanh, tanhf(x))                                                      \
  CUDASIM_UNARY(Type, hfloor, floorf(x))                                                    \
  CUDASIM_UNARY(Type, hceil, ceilf(x))                                                      \
  CUDASIM_UNARY(Type, htrunc, truncf(x))                                                    \
  CUDASIM_UNARY(Type, hrint, rintf(x))

CUDASIM_HALF_FUNCTIONS(__half)
CUDASIM_HALF_FUNCTIONS(__nv_bfloat16)

#define CUDASIM_PAIR_FUNCTIONS(Pair, Type)                                                  \
  inline Pair operator+(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }                  \
  inline Pair operator-(Pair a, Pair b) { return {a.x - b.x, a.y - b.y}; }                  \
  inline Pair operator*(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }                  \
  inline Pair operator/(Pair a, Pair b) { return {a.x / b.x, a.y / b.y}; }                  \
  inline Pair __hadd2(Pair a, Pair b) { return a + b; }                                     \
  inline Pair __hsub2(Pair a, Pair b) { return a - b; }                                     \
  inline Pair __hmul2(Pair a, Pair b) { return a * b; }                                     \
  inline Pair __hfma2(Pair a, Pair b, Pair c) {                                             \
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                                  \
  }                                                                                         \
  inline Pair __hmax2(Pair a, Pair b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }      \
  inline Pair __hmin2(Pair a, Pair b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }

CUDASIM_PAIR_FUNCTIONS(__half2, __half)
CUDASIM_PAIR_FUNCTIONS(__nv_bfloat162, __nv_bfloat16)

#undef CUDASIM_ARITHMETIC
#undef CUDASIM_COMPARISON
#undef CUDASIM_UNARY
#undef CUDASIM_HALF_FUNCTIONS
#undef CUDASIM_PAIR_FUNCTIONS
