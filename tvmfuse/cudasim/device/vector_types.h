// int2, float4, dim3 and the other built-in vector types with CUDA's sizes and alignments.
#pragma once

#define CUDASIM_VECTOR_TYPES(Scalar, Name)                                                   \
  struct Name##1 { Scalar x; };                                                              \
  struct alignas(2 * sizeof(Scalar)) Name##2 { Scalar x, y; };                               \
  struct Name##3 { Scalar x, y, z; };                                                        \
  struct alignas(4 * sizeof(Scalar) > 16 ? 16 : 4 * sizeof(Scalar)) Name##4 {                \
    Scalar x, y, z, w;                                                                       \
  };                                                                                         \
  inline Name##1 make_##Name##1(Scalar x) { return {x}; }                                    \
  inline Name##2 make_##Name##2(Scalar x, Scalar y) { return {x, y}; }                       \
  inline Name##3 make_##Name##3(Scalar x, Scalar y, Scalar z) { return {x, y, z}; }          \
  inline Name##4 make_##Name##4(Scalar x, Scalar y, Scalar z, Scalar w) { return {x, y, z, w}; }

CUDASIM_VECTOR_TYPES(signed char, char)
CUDASIM_VECTOR_TYPES(unsigned char, uchar)
CUDASIM_VECTOR_TYPES(short, short)
CUDASIM_VECTOR_TYPES(unsigned short, ushort)
CUDASIM_VECTOR_TYPES(int, int)
CUDASIM_VECTOR_TYPES(unsigned int, uint)
CUDASIM_VECTOR_TYPES(long, long)
CUDASIM_VECTOR_TYPES(unsigned long, ulong)
CUDASIM_VECTOR_TYPES(long long, longlong)
CUDASIM_VECTOR_TYPES(unsigned long long, ulonglong)
CUDASIM_VECTOR_TYPES(float, float)
CUDASIM_VECTOR_TYPES(double, double)
#undef CUDASIM_VECTOR_TYPES

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
