// Counters per kernel: what its memory accesses cost a GPU, against the least they could.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cudasim {

class BlockRunner;

void trace_access(BlockRunner& runner, const char* address, size_t bytes, bool write,
                  bool is_shared, uint32_t offset);
// Turns the accesses of the block that ended into transactions.
void trace_block_end(BlockRunner& runner);

}  // namespace cudasim
