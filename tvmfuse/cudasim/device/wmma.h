// nvcuda::wmma: matrix fragments of a warp.
//
// CUDA leaves open which lane holds which element. Here each lane holds consecutive elements of a
// row, in all three matrices: a lane's part of a row of the result is a sum over k of parts of the
// rows of B, which the compiler vectorises without changing the order of k.
#pragma once
#include <algorithm>

#include "fragment_math.h"

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}

template <class T>
struct Storage {
  using type = T;
};
template <>
struct Storage<precision::tf32> {
  using type = float;
};

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static constexpr int kRows = std::is_same_v<Use, matrix_b> ? K : M;
  static constexpr int kColumns = std::is_same_v<Use, matrix_a> ? K : N;
  static constexpr int num_elements = kRows * kColumns / cudasim::kWarpSize;
  using Element = typename Storage<T>::type;

  Element x[num_elements];

  // Row and column of element i of a lane.
  static int row(int lane, int i) { return (lane * num_elements + i) / kColumns; }
  static int column(int lane, int i) { return (lane * num_elements + i) % kColumns; }
};

inline float __float_to_tf32(float value) {
  // Round to nearest, ties away, to ten bits of mantissa.
  return cudasim::bit_cast<float>((cudasim::bit_cast<uint32_t>(value) + 0x1000u) & 0xffffe000u);
}

template <class Fragment, class T>
CUDASIM_INLINE void fill_fragment(Fragment& f, T value) {
  for (int i = 0; i < f.num_elements; ++i) f.x[i] = typename Fragment::Element(value);
}

template <class Fragment, class T>
CUDASIM_INLINE void load(Fragment& f, const T* source, unsigned stride, bool by_rows, int line) {
  cudasim::warp_barrier(0xffffffffu, line);
  const int lane = cudasim::lane();
  for (int i = 0; i < f.num_elements; ++i) {
    size_t major = size_t(by_rows ? f.row(lane, i) : f.column(lane, i));
    size_t minor = size_t(by_rows ? f.column(lane, i) : f.row(lane, i));
    f.x[i] = source[major * stride + minor];
  }
}

template <class Use, int M, int N, int K, class T, class Layout, class U>
CUDASIM_INLINE void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, const U* source,
                                     unsigned stride, int line = __builtin_LINE()) {
  load(f, source, stride, std::is_same_v<Layout, row_major>, line);
}

template <int M, int N, int K, class T, class U>
CUDASIM_INLINE void load_matrix_sync(fragment<accumulator, M, N, K, T, void>& f, const U* source,
                                     unsigned stride, layout_t layout,
                                     int line = __builtin_LINE()) {
  load(f, source, stride, layout == mem_row_major, line);
}

template <int M, int N, int K, class T, class U>
CUDASIM_INLINE void store_matrix_sync(U* target, const fragment<accumulator, M, N, K, T, void>& f,
                                      unsigned stride, layout_t layout,
                                      int line = __builtin_LINE()) {
  cudasim::warp_barrier(0xffffffffu, line);
  const int lane = cudasim::lane();
  for (int i = 0; i < f.num_elements; ++i) {
    const bool by_rows = layout == mem_row_major;
    size_t major = size_t(by_rows ? f.row(lane, i) : f.column(lane, i));
    size_t minor = size_t(by_rows ? f.column(lane, i) : f.row(lane, i));
    target[major * stride + minor] = f.x[i];
  }
}

template <class T>
CUDASIM_RUNTIME inline auto operand(const typename Storage<T>::type& element) {
  if constexpr (std::is_same_v<T, precision::tf32>)
    return float(cudasim::Tf32{element});
  else
    return cudasim::Accumulator<T>(element);
}

template <int M, int N, int K, class A, class LayoutA, class B, class LayoutB, class C, class D>
CUDASIM_RUNTIME inline void mma_sync(fragment<accumulator, M, N, K, D>& d,
                                     const fragment<matrix_a, M, N, K, A, LayoutA>& a,
                                     const fragment<matrix_b, M, N, K, B, LayoutB>& b,
                                     const fragment<accumulator, M, N, K, C>& c,
                                     int line = __builtin_LINE()) {
  using Sum = cudasim::Accumulator<C>;
  constexpr int kElements = fragment<accumulator, M, N, K, D>::num_elements;
  constexpr int kInA = fragment<matrix_a, M, N, K, A, LayoutA>::num_elements;
  constexpr int kInB = fragment<matrix_b, M, N, K, B, LayoutB>::num_elements;
  constexpr int kRun = std::min(kInB, kElements);
  static_assert(N % kElements == 0 && kElements % kRun == 0, "a lane's elements are of one row");
  struct Operands {  // as the sum takes them, so that each element is converted once
    Sum a[kInA], b[kInB];
  } mine;
  for (int i = 0; i < kInA; ++i) mine.a[i] = Sum(operand<A>(a.x[i]));
  for (int i = 0; i < kInB; ++i) mine.b[i] = Sum(operand<B>(b.x[i]));
  cudasim::Exchange exchange = cudasim::publish(0xffffffffu, mine, line);
  const int row = d.row(cudasim::lane(), 0), column = d.column(cudasim::lane(), 0);
  Sum sums[kElements];
  for (int i = 0; i < kElements; ++i) sums[i] = Sum(c.x[i]);
  for (int k = 0; k < K; ++k) {
    const int in_a = row * K + k;
    const Sum factor = exchange.of<Operands>(in_a / kInA).a[in_a % kInA];
    for (int run = 0; run < kElements; run += kRun) {
      const int in_b = k * N + column + run;
      const Sum* part = &exchange.of<Operands>(in_b / kInB).b[in_b % kInB];
      for (int i = 0; i < kRun; ++i) sums[run + i] += factor * part[i];
    }
  }
  for (int i = 0; i < kElements; ++i) d.x[i] = D(sums[i]);
  if (cudasim::lane() == 0) cudasim::count_matrix_flops(M, N, K);
}

}  // namespace wmma
}  // namespace nvcuda
