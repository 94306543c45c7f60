// ldmatrix and mma.sync, with the register layouts of the PTX ISA (section 9.7.14).
//
// Lane l has group g = l / 4 and position t = l % 4. A 32-bit register holds E = 4 / sizeof(T)
// consecutive elements along k; k is cut in steps of 4 * E.
//   A, register r: row g + 8 * (r % 2),         k = step r / 2, elements E * t ...
//   B, register r: column g,                    k = step r,     elements E * t ...
//   C, element i:  row g + 8 * (i / 2), column 2 * t + i % 2
#pragma once
#include <cstring>

#include "fragment_math.h"

namespace cudasim {

template <class T>
CUDASIM_RUNTIME inline T element_of(uint32_t word, int index) {
  T value;
  memcpy(static_cast<void*>(&value), reinterpret_cast<const char*>(&word) + size_t(index) * sizeof(T),
         sizeof(T));
  return value;
}

// D = A B + C for one m16n8kK tile. `d` receives the registers of the calling lane.
template <int K, class AB, class CD, int kARegisters, int kBRegisters, int kCRegisters>
CUDASIM_RUNTIME inline void mma_m16n8(uint32_t (&d)[kCRegisters], const uint32_t (&a)[kARegisters],
                                      const uint32_t (&b)[kBRegisters],
                                      const uint32_t (&c)[kCRegisters], int line) {
  constexpr int kPacked = 4 / int(sizeof(AB));
  constexpr int kStep = 4 * kPacked;
  static_assert(kARegisters == 2 * K / kStep && kBRegisters == K / kStep);
  static_assert(kCRegisters == int(sizeof(CD)));
  using Sum = Accumulator<CD>;
  struct Operands {
    // As the sum takes them, so that each element is converted once.
    Sum a[kARegisters][kPacked], b[kBRegisters][kPacked];
  } mine;
  for (int i = 0; i < kPacked; ++i) {
    for (int r = 0; r < kARegisters; ++r) mine.a[r][i] = Sum(element_of<AB>(a[r], i));
    for (int r = 0; r < kBRegisters; ++r) mine.b[r][i] = Sum(element_of<AB>(b[r], i));
  }
  Exchange exchange = publish(0xffffffffu, mine, line);
  const int group = lane() / 4, position = lane() % 4;

  Sum rows[2][K], columns[2][K];
  for (int k = 0; k < K; ++k) {
    const int step = k / kStep, holder = k % kStep / kPacked, index = k % kPacked;
    for (int half = 0; half < 2; ++half) {
      const Operands& row = exchange.of<Operands>(group * 4 + holder);
      const Operands& column = exchange.of<Operands>((position * 2 + half) * 4 + holder);
      rows[half][k] = row.a[2 * step + half][index];
      columns[half][k] = column.b[step][index];
    }
  }
  CD values[4];
  memcpy(static_cast<void*>(values), c, sizeof values);
  for (int i = 0; i < 4; ++i) {
    Sum sum = Sum(values[i]);
    for (int k = 0; k < K; ++k) sum += rows[i / 2][k] * columns[i % 2][k];
    values[i] = CD(sum);
  }
  memcpy(d, static_cast<const void*>(values), sizeof values);
  if (lane() == 0) count_matrix_flops(16, 8, K);
}

// Loads kCount matrices of 8 rows of 16 bytes; lane 8 m + r gives the address of row r of matrix
// m. Register m of lane l receives elements 2 * (l % 4) and the next of row l / 4, or, transposed,
// element l / 4 of rows 2 * (l % 4) and the next.
CUDASIM_RUNTIME inline void gather_addresses(unsigned (&rows)[kWarpSize], unsigned address,
                                             int line) {
  Exchange exchange = publish(0xffffffffu, address, line);
  for (int i = 0; i < kWarpSize; ++i) rows[i] = exchange.of<unsigned>(i);
}

template <int kCount, bool kTransposed>
CUDASIM_INLINE void ldmatrix(uint32_t (&d)[kCount], unsigned address, int line) {
  if (address % 16) fail("ldmatrix: the address of a row is not a multiple of 16");
  unsigned rows[kWarpSize];
  gather_addresses(rows, address, line);
  const int major = lane() / 4, minor = lane() % 4 * 2;
  for (int m = 0; m < kCount; ++m) {
    uint32_t packed = 0;
    for (int i = 0; i < 2; ++i) {
      int row = kTransposed ? minor + i : major;
      int column = kTransposed ? major : minor + i;
      char* start = shared_address(rows[8 * m + row]);
      packed |= uint32_t(reinterpret_cast<const uint16_t*>(start)[column]) << 16 * i;
    }
    d[m] = packed;
  }
}

// An operand of inline PTX as the 32 bits of its register.
template <class T>
CUDASIM_RUNTIME inline uint32_t register_bits(const T& value) {
  static_assert(sizeof(T) == 4, "a PTX register operand must have 32 bits");
  return bit_cast<uint32_t>(value);
}

}  // namespace cudasim
