// nvcuda::wmma: matrix fragments of a warp.
//
// CUDA leaves open which lane holds which element. Here each lane holds consecutive elements: of
// the rows of A and of the accumulator, of the columns of B, so a dot product reads few lanes.
#pragma once
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
  static constexpr bool kByColumns = std::is_same_v<Use, matrix_b>;
  using Element = typename Storage<T>::type;

  Element x[num_elements];

  // Row and column of element i of the calling lane.
  static int row(int i) {
    int index = cudasim::lane() * num_elements + i;
    return kByColumns ? index % kRows : index / kColumns;
  }
  static int column(int i) {
    int index = cudasim::lane() * num_elements + i;
    return kByColumns ? index / kRows : index % kColumns;
  }
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
  for (int i = 0; i < f.num_elements; ++i) {
    size_t major = size_t(by_rows ? f.row(i) : f.column(i));
    size_t minor = size_t(by_rows ? f.column(i) : f.row(i));
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
  for (int i = 0; i < f.num_elements; ++i) {
    size_t major = size_t(layout == mem_row_major ? f.row(i) : f.column(i));
    size_t minor = size_t(layout == mem_row_major ? f.column(i) : f.row(i));
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
  struct Operands {
    fragment<matrix_a, M, N, K, A, LayoutA> a;
    fragment<matrix_b, M, N, K, B, LayoutB> b;
  };
  using Sum = cudasim::Accumulator<C>;
  cudasim::Exchange exchange = cudasim::publish(0xffffffffu, Operands{a, b}, line);
  Sum row[K];
  int loaded = -1;
  for (int i = 0; i < d.num_elements; ++i) {
    if (d.row(i) != loaded) {
      loaded = d.row(i);
      for (int k = 0; k < K; ++k) {
        int index = loaded * K + k;
        const Operands& from = exchange.of<Operands>(index / a.num_elements);
        row[k] = Sum(operand<A>(from.a.x[index % a.num_elements]));
      }
    }
    Sum sum = Sum(c.x[i]);
    for (int k = 0; k < K; ++k) {
      int index = d.column(i) * K + k;
      const Operands& from = exchange.of<Operands>(index / b.num_elements);
      sum += row[k] * Sum(operand<B>(from.b.x[index % b.num_elements]));
    }
    d.x[i] = D(sum);
  }
  if (cudasim::lane() == 0) cudasim::count_matrix_flops(M, N, K);
}

}  // namespace wmma
}  // namespace nvcuda
