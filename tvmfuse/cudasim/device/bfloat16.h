// __nv_bfloat16: the upper half of a float; arithmetic in float, rounded to nearest even.
#pragma once
#include "half.h"

namespace cudasim {

CUDASIM_INLINE float bfloat16_to_float(uint16_t bits) {
  return bit_cast<float>(uint32_t(bits) << 16);
}

CUDASIM_INLINE uint16_t float_to_bfloat16(float value) {
  uint32_t bits = bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // NaN, as the hardware encodes it
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

}  // namespace cudasim

struct __nv_bfloat16 {
  uint16_t bits;

  __nv_bfloat16() = default;
  __nv_bfloat16(const __nv_bfloat16&) = default;
  __nv_bfloat16& operator=(const __nv_bfloat16&) = default;
  __nv_bfloat16(const volatile __nv_bfloat16& other) : bits(other.bits) {}
  void operator=(const __nv_bfloat16& other) volatile { bits = other.bits; }
  void operator=(const volatile __nv_bfloat16& other) volatile { bits = other.bits; }

  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  __nv_bfloat16(T value) {
    if constexpr (sizeof(T) > 4 || (std::is_integral_v<T> && sizeof(T) == 4))
      bits = cudasim::float_to_bfloat16(cudasim::round_to_odd(double(value)));
    else
      bits = cudasim::float_to_bfloat16(float(value));
  }
  operator float() const { return cudasim::bfloat16_to_float(bits); }
};
typedef __nv_bfloat16 nv_bfloat16;

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  __nv_bfloat162(__nv_bfloat16 first, __nv_bfloat16 second) : x(first), y(second) {}
};
typedef __nv_bfloat162 nv_bfloat162;

inline __nv_bfloat16 __float2bfloat16(float value) { return __nv_bfloat16(value); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return __nv_bfloat16(value); }
inline __nv_bfloat16 __double2bfloat16(double value) { return __nv_bfloat16(value); }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  __nv_bfloat16 value;
  value.bits = bits;
  return value;
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
