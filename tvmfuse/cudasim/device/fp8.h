// The 8-bit floating-point types, as storage: every value goes through float.
//
// e4m3 has no infinity (S.1111.111 is NaN) and saturates at 448; e5m2 saturates at 57344, as
// CUDA's conversions do by default; e8m0 holds powers of two.
#pragma once
#include <cmath>
#include <cstdint>

#include "bfloat16.h"
#include "half.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;

namespace cudasim {

template <int exponent_bits, int mantissa_bits, int bias>
inline float fp8_to_float(uint8_t bits) {
  int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  int mantissa = bits & ((1 << mantissa_bits) - 1);
  float value;
  if (exponent_bits == 4 && (bits & 0x7f) == 0x7f)
    value = __builtin_nanf("");
  else if (exponent_bits == 5 && exponent == 31)
    value = mantissa ? __builtin_nanf("") : __builtin_inff();
  else if (exponent == 0)
    value = ldexpf(float(mantissa), 1 - bias - mantissa_bits);
  else
    value = ldexpf(float(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
  return bits & 0x80 ? -value : value;
}

// Round to nearest even, saturating: the largest finite value is `largest_bits`.
template <int exponent_bits, int mantissa_bits, int bias, uint8_t largest_bits>
inline uint8_t float_to_fp8(float value) {
  uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return uint8_t(sign | 0x7f);
  float magnitude = fabsf(value);
  if (magnitude == 0) return sign;
  const float largest = fp8_to_float<exponent_bits, mantissa_bits, bias>(largest_bits);
  if (magnitude >= largest) return uint8_t(sign | largest_bits);
  int exponent;
  frexpf(magnitude, &exponent);
  int scale = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;  // subnormals share the smallest
  // In units of the last place; a carry into the next exponent comes out right by itself.
  int units = int(nearbyintf(ldexpf(magnitude, mantissa_bits - scale)));
  int encoded = ((scale + bias - 1) << mantissa_bits) + units;
  return uint8_t(sign | (encoded > largest_bits ? largest_bits : encoded));
}

inline float e8m0_to_float(uint8_t bits) {
  return bits == 255 ? __builtin_nanf("") : ldexpf(1.0f, int(bits) - 127);
}
inline uint8_t float_to_e8m0(float value) {
  if (std::isnan(value)) return 255;
  if (!(value > 0)) return 0;
  int exponent;
  frexpf(value, &exponent);
  int biased = exponent - 1 + 127;
  return uint8_t(biased < 0 ? 0 : biased > 254 ? 254 : biased);
}

}  // namespace cudasim

#define CUDASIM_FP8(Name, decode, encode)                                                  \
  struct __nv_fp8_##Name {                                                                 \
    __nv_fp8_storage_t __x;                                                                \
    __nv_fp8_##Name() = default;                                                           \
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>                  \
    explicit __nv_fp8_##Name(T value) : __x(encode(float(value))) {}                       \
    explicit __nv_fp8_##Name(__half value) : __x(encode(float(value))) {}                  \
    explicit __nv_fp8_##Name(__nv_bfloat16 value) : __x(encode(float(value))) {}           \
    operator float() const { return decode(__x); }                                         \
  };                                                                                       \
  struct alignas(2) __nv_fp8x2_##Name {                                                    \
    __nv_fp8x2_storage_t __x;                                                              \
    __nv_fp8x2_##Name() = default;                                                         \
    template <class Pair, class = decltype(Pair::x)>                                       \
    explicit __nv_fp8x2_##Name(Pair pair)                                                  \
        : __x(__nv_fp8x2_storage_t(encode(float(pair.x)) | encode(float(pair.y)) << 8)) {} \
    explicit operator float2() const { return {decode(__x & 0xff), decode(__x >> 8)}; }    \
    explicit operator __half2() const {                                                    \
      return {__half(decode(__x & 0xff)), __half(decode(__x >> 8))};                       \
    }                                                                                      \
    explicit operator __nv_bfloat162() const {                                             \
      return {__nv_bfloat16(decode(__x & 0xff)), __nv_bfloat16(decode(__x >> 8))};         \
    }                                                                                      \
  };                                                                                       \
  struct alignas(4) __nv_fp8x4_##Name {                                                    \
    __nv_fp8x4_storage_t __x;                                                              \
    __nv_fp8x4_##Name() = default;                                                         \
    explicit __nv_fp8x4_##Name(float4 v)                                                   \
        : __x(encode(v.x) | encode(v.y) << 8 | encode(v.z) << 16 |                         \
              __nv_fp8x4_storage_t(encode(v.w)) << 24) {}                                  \
    explicit operator float4() const {                                                     \
      return {decode(__x & 0xff), decode(__x >> 8 & 0xff), decode(__x >> 16 & 0xff),       \
              decode(__x >> 24)};                                                          \
    }                                                                                      \
  };

CUDASIM_FP8(e4m3, (cudasim::fp8_to_float<4, 3, 7>), (cudasim::float_to_fp8<4, 3, 7, 0x7e>))
CUDASIM_FP8(e5m2, (cudasim::fp8_to_float<5, 2, 15>), (cudasim::float_to_fp8<5, 2, 15, 0x7b>))
CUDASIM_FP8(e8m0, cudasim::e8m0_to_float, cudasim::float_to_e8m0)
#undef CUDASIM_FP8
