// Atomic operations. Blocks run on several cores, so they are real atomics of the host: a
// compare-and-swap loop on the bits, which serves floats and halves as well.
#pragma once
#include <cstdint>
#include <type_traits>

#include "bfloat16.h"
#include "half.h"
#include "attributes.h"

namespace cudasim {

// Tells the checker about the access; only instrumented kernels call it.
void atomic_access(const void* address, size_t size, const void* caller);

template <size_t size>
using Bits = std::conditional_t<
    size == 1, uint8_t,
    std::conditional_t<size == 2, uint16_t, std::conditional_t<size == 4, uint32_t, uint64_t>>>;

// Inlined into the function that the kernel calls, whose return address is then in the kernel.
template <class T, class Update>
CUDASIM_RUNTIME CUDASIM_INLINE T atomic_update(T* address, Update update) {
#ifdef CUDASIM_INSTRUMENTED
  atomic_access(address, sizeof(T), __builtin_return_address(0));
#endif
  using Word = Bits<sizeof(T)>;
  Word* word = reinterpret_cast<Word*>(address);
  Word old = __atomic_load_n(word, __ATOMIC_RELAXED);
  for (;;) {
    T before = bit_cast<T>(old);
    T after = update(before);
    if (__atomic_compare_exchange_n(word, &old, bit_cast<Word>(after), true, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
      return before;
  }
}

}  // namespace cudasim

#define CUDASIM_ATOMIC(name, expression)                                       \
  template <class T, class U>                                                  \
  CUDASIM_RUNTIME CUDASIM_NOINLINE T name(T* address, U operand) {                 \
    T value = T(operand);                                                      \
    return cudasim::atomic_update(address, [=](T old) { return T(expression); }); \
  }
CUDASIM_ATOMIC(atomicAdd, old + value)
CUDASIM_ATOMIC(atomicSub, old - value)
CUDASIM_ATOMIC(atomicMax, old > value ? old : value)
CUDASIM_ATOMIC(atomicMin, old < value ? old : value)
CUDASIM_ATOMIC(atomicExch, value)
CUDASIM_ATOMIC(atomicOr, old | value)
CUDASIM_ATOMIC(atomicAnd, old& value)
CUDASIM_ATOMIC(atomicXor, old ^ value)
#undef CUDASIM_ATOMIC

template <class T, class U, class V>
CUDASIM_RUNTIME CUDASIM_NOINLINE T atomicCAS(T* address, U compare, V value) {
  return cudasim::atomic_update(
      address, [=](T old) { return old == T(compare) ? T(value) : old; });
}
