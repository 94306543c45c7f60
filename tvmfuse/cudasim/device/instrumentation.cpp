// The hooks that `-fsanitize=thread` calls at every access of an instrumented kernel. The
// compiler's own library is not linked: these take its place.
#include "checker.h"

#define CUDASIM_CALLER __builtin_return_address(0)
#define CUDASIM_HOOKS(size)                                                                     \
  void __tsan_read##size(void* p) { cudasim::checked_access(p, size, false, CUDASIM_CALLER); }  \
  void __tsan_write##size(void* p) { cudasim::checked_access(p, size, true, CUDASIM_CALLER); }  \
  void __tsan_unaligned_read##size(void* p) {                                                   \
    cudasim::checked_access(p, size, false, CUDASIM_CALLER, false);                             \
  }                                                                                             \
  void __tsan_unaligned_write##size(void* p) {                                                  \
    cudasim::checked_access(p, size, true, CUDASIM_CALLER, false);                              \
  }                                                                                             \
  void __tsan_volatile_read##size(void* p) {                                                    \
    cudasim::checked_access(p, size, false, CUDASIM_CALLER);                                    \
  }                                                                                             \
  void __tsan_volatile_write##size(void* p) {                                                   \
    cudasim::checked_access(p, size, true, CUDASIM_CALLER);                                     \
  }

extern "C" {
CUDASIM_HOOKS(1)
CUDASIM_HOOKS(2)
CUDASIM_HOOKS(4)
CUDASIM_HOOKS(8)
CUDASIM_HOOKS(16)

void __tsan_read_range(void* p, unsigned long size) {
  cudasim::checked_access(p, size, false, CUDASIM_CALLER, false);
}
void __tsan_write_range(void* p, unsigned long size) {
  cudasim::checked_access(p, size, true, CUDASIM_CALLER, false);
}
// Of -fsanitize-coverage=trace-pc: at the start of every basic block.
void __sanitizer_cov_trace_pc() { cudasim::basic_block(CUDASIM_CALLER); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
