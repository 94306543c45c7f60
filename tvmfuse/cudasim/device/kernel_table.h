// What a compiled module tells the runtime about its kernels. source.py prints one entry per
// kernel; the module exports nothing but the table.
#pragma once
#include <cstddef>
#include <utility>

#include "execution.h"

namespace cudasim {

// Space between two static shared arrays, so that an overrun is seen instead of hitting the next.
constexpr size_t kRedZone = 1024;

struct SharedArray {
  const char* name;
  size_t offset, size;
};

struct Kernel {
  const char* name;
  void (*invoke)(void** arguments);
  const SharedArray* arrays;
  int array_count;
  size_t shared_bytes;  // of the arrays with the red zones between them
};

constexpr size_t align_up(size_t value, size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

template <class... P, size_t... I>
CUDASIM_RUNTIME inline void call(void (*kernel)(P...), void** arguments,
                                 std::index_sequence<I...>) {
  kernel(*static_cast<P*>(arguments[I])...);
}

template <class... P>
CUDASIM_RUNTIME inline void call(void (*kernel)(P...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<P...>{});
}

}  // namespace cudasim
