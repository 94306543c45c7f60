// CUDA's scalar functions. The fast-math forms (__expf, __sinf, ...) have the accuracy of the
// plain ones here: the error of the hardware's approximations is not modelled.
#pragma once
#include <cmath>
#include <cstdint>

#include "half.h"

#define CUDASIM_MIN_MAX(Type)                                  \
  inline Type max(Type a, Type b) { return a > b ? a : b; }    \
  inline Type min(Type a, Type b) { return a < b ? a : b; }
CUDASIM_MIN_MAX(int)
CUDASIM_MIN_MAX(unsigned)
CUDASIM_MIN_MAX(long)
CUDASIM_MIN_MAX(unsigned long)
CUDASIM_MIN_MAX(long long)
CUDASIM_MIN_MAX(unsigned long long)
#undef CUDASIM_MIN_MAX
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

inline int __float_as_int(float value) { return cudasim::bit_cast<int>(value); }
inline float __int_as_float(int value) { return cudasim::bit_cast<float>(value); }
inline unsigned __float_as_uint(float value) { return cudasim::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned value) { return cudasim::bit_cast<float>(value); }
inline long long __double_as_longlong(double value) { return cudasim::bit_cast<long long>(value); }
inline double __longlong_as_double(long long value) { return cudasim::bit_cast<double>(value); }

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
inline int __clz(int value) { return value ? __builtin_clz(value) : 32; }
inline int __clzll(long long value) { return value ? __builtin_clzll(value) : 64; }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned((unsigned long long)a * b >> 32);
}

// Sum of four products of 8-bit integers, added to c.
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += int8_t(a >> 8 * i) * int8_t(b >> 8 * i);
  return c;
}
inline int __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += uint8_t(a >> 8 * i) * uint8_t(b >> 8 * i);
  return int(c);
}

template <class T>
CUDASIM_INLINE T __ldg(const T* address) { return *address; }

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUDART_INF_FP16 __ushort_as_half((unsigned short)0x7c00U)
#define CUDART_NAN_FP16 __ushort_as_half((unsigned short)0x7fffU)
#define CUDART_INF_BF16 __ushort_as_bfloat16((unsigned short)0x7f80U)
#define CUDART_NAN_BF16 __ushort_as_bfloat16((unsigned short)0x7fffU)
