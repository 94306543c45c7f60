// What the two interfaces to tensor cores (wmma and mma.sync) share: the dot product of a row and
// a column that come from several lanes. Products are exact and accumulate in order of k, in float
// (int32 for integers); the hardware's order and its truncation are not modelled.
#pragma once
#include <type_traits>

#include "execution.h"
#include "fp8.h"

namespace cudasim {

struct Tf32 {  // a float of which tensor cores read 19 bits
  float value;
  operator float() const { return bit_cast<float>(bit_cast<uint32_t>(value) & 0xffffe000u); }
};

template <class T>
using Accumulator = std::conditional_t<
    std::is_integral_v<T>, int, std::conditional_t<std::is_same_v<T, double>, double, float>>;

// Tells the trace about the 2 * m * n * k operations of a warp; one lane does.
void count_matrix_flops(int m, int n, int k);

}  // namespace cudasim
