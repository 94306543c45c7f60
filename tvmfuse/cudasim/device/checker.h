// The checker: for each access of an instrumented kernel, does it lie in bounds, is the data
// there, and is it ordered after every conflicting access?
//
// Instrumented launches run on one worker, block after block. An earlier access is ordered before
// the present one if it belongs to an earlier launch, to the same thread, to an earlier interval
// between two block barriers, or to the same warp before a warp collective of both lanes. All
// else conflicts if one of the two writes, whichever order this run happened to take.
#pragma once
#include <cstddef>
#include <cstdint>

#include "memory.h"

namespace cudasim {

class BlockRunner;

// An access of `bytes` by the running fiber; `caller` is an address in the kernel's code.
// `aligned`: the compiler took the address to be a multiple of the size.
void checked_access(const void* address, size_t bytes, bool write, const void* caller,
                    bool aligned = true);
void atomic_access(const void* address, size_t bytes, const void* caller);
// cp.async to shared memory: from its issue to its arrival at the wait, any access conflicts.
void async_issue(const void* address, size_t bytes, const void* caller);
void async_arrival(const void* address, size_t bytes, const void* caller);

// The kernel came to the basic block whose hook returns to `caller`.
void basic_block(const void* caller);

// What the scheduler tells the checker.
void begin_launch(BlockRunner& runner);
void begin_block(BlockRunner& runner, uint64_t block);
void end_block(BlockRunner& runner);
void pass_barrier(BlockRunner& runner);
void pass_warp_barrier(BlockRunner& runner, int warp, unsigned group);
void report_divergence(BlockRunner& runner, int line, int other_line);

// What the memory tells it.
void host_write(Allocation& allocation, size_t offset, size_t bytes);
void release_shadow(Allocation& allocation);

}  // namespace cudasim
