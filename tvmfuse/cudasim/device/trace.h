// Counters per kernel: what its memory accesses cost a GPU, against the least they could.
//
// The accesses of a warp at one instruction, the n-th time each lane comes there, are one request.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cudasim {

class BlockRunner;

void trace_access(BlockRunner& runner, const char* address, size_t bytes, bool write,
                  bool is_shared, uint32_t offset);
// The kernel came to the basic block whose hook returns to `offset`.
void trace_basic_block(const BlockRunner& runner, uint64_t offset);
// Turns the accesses of the block that ended into transactions.
void trace_block_end(BlockRunner& runner);

}  // namespace cudasim

extern "C" {

// One memory and direction. Transactions are 32-byte sectors of global memory, or wavefronts
// (passes over the 32 banks) of shared memory; `ideal` is the least for the bytes asked for.
struct CudasimTraffic {
  uint64_t requests, bytes, transactions, ideal;
};

struct CudasimCounters {
  const char* kernel;
  CudasimTraffic global_read, global_write, shared_read, shared_write;
  uint64_t matrix_flops;  // of wmma and mma.sync
};

// How often a kernel came to each basic block of its library, by offset; disassembled, the blocks
// tell its scalar operations (flops.py).
struct CudasimVisits {
  const char* kernel;
  const char* library;
  const uint64_t* visits;
  uint64_t size;
};

void cudasim_begin_trace();
int cudasim_counters_count();
int cudasim_counters_get(int index, CudasimCounters* counters);
int cudasim_visits_count();
int cudasim_visits_get(int index, CudasimVisits* visits);
}
