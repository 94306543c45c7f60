#include "trace.h"

namespace cudasim {
void trace_access(BlockRunner&, const char*, size_t, bool, bool, uint32_t) {}
void trace_block_end(BlockRunner&) {}
void count_matrix_flops(int, int, int) {}
}  // namespace cudasim
