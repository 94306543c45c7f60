// __half: IEEE binary16 kept as bits; arithmetic in float, rounded to nearest even after each
// operation. float has more than 2 * 11 + 2 significant bits, so the second rounding is harmless
// for + - * / sqrt (Figueroa, "When is double rounding innocuous?", 1995).
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attributes.h"

namespace cudasim {

template <class To, class From>
CUDASIM_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

CUDASIM_INLINE float half_to_float(uint16_t half) {
  // Exponent and mantissa go to their places in a float, then a product corrects the bias; the
  // product also normalises subnormal numbers.
  float magnitude = bit_cast<float>(uint32_t(half & 0x7fffu) << 13) * 0x1p112f;
  uint32_t bits = bit_cast<uint32_t>(magnitude);
  if ((half & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u;  // infinity and NaN
  return bit_cast<float>(bits | uint32_t(half & 0x8000u) << 16);
}

CUDASIM_INLINE uint16_t float_to_half(float value) {
  uint32_t bits = bit_cast<uint32_t>(value);
  uint32_t sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return 0x7fff;                    // NaN, as the hardware encodes it
  if (bits >= 0x477ff000u) return uint16_t(sign | 0x7c00);  // rounds to infinity
  if (bits < 0x38800000u) {
    // Subnormal: the sum with 0.5 lets the float adder round at the right bit.
    uint32_t rounded = bit_cast<uint32_t>(bit_cast<float>(bits) + 0.5f) - 0x3f000000u;
    return uint16_t(sign | rounded);
  }
  uint32_t odd = bits >> 13 & 1;
  return uint16_t(sign | (bits - 0x38000000u + 0xfffu + odd) >> 13);
}

// A double rounded to float such that rounding again, to a narrower type, gives the right result.
CUDASIM_INLINE float round_to_odd(double value) {
  float nearest = float(value);
  if (double(nearest) == value || nearest != nearest) return nearest;
  uint32_t bits = bit_cast<uint32_t>(nearest);
  if (bits & 1) return nearest;
  bool too_far = __builtin_fabs(double(nearest)) > __builtin_fabs(value);
  return bit_cast<float>(too_far ? bits - 1 : bits + 1);
}

}  // namespace cudasim

struct __half {
  uint16_t bits;

  __half() = default;
  __half(const __half&) = default;
  __half& operator=(const __half&) = default;
  __half(const volatile __half& other) : bits(other.bits) {}
  void operator=(const __half& other) volatile { bits = other.bits; }
  void operator=(const volatile __half& other) volatile { bits = other.bits; }

  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  __half(T value) {
    if constexpr (sizeof(T) > 4 || (std::is_integral_v<T> && sizeof(T) == 4))
      bits = cudasim::float_to_half(cudasim::round_to_odd(double(value)));
    else
      bits = cudasim::float_to_half(float(value));
  }
  operator float() const { return cudasim::half_to_float(bits); }
};
typedef __half half;

struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  __half2(__half first, __half second) : x(first), y(second) {}
};
typedef __half2 half2;

inline __half __float2half(float value) { return __half(value); }
inline __half __float2half_rn(float value) { return __half(value); }
inline __half __double2half(double value) { return __half(value); }
inline float __half2float(__half value) { return value; }
inline __half __ushort_as_half(unsigned short bits) {
  __half value;
  value.bits = bits;
  return value;
}
inline unsigned short __half_as_ushort(__half value) { return value.bits; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __float22half2_rn(float2 value) { return {__half(value.x), __half(value.y)}; }
inline float2 __half22float2(__half2 value) { return {float(value.x), float(value.y)}; }
