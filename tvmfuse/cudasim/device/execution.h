// What a running kernel asks of the scheduler: its coordinates, shared memory, barriers and the
// exchange of values within a warp. Everything else warp-wide (shuffles, votes, matrix
// instructions) is built on warp_exchange.
#pragma once
#include <cstddef>
#include <cstdint>

#include "attributes.h"
#include "vector_types.h"

namespace cudasim {

constexpr int kWarpSize = 32;
constexpr size_t kExchangeBytes = 256;  // the largest value one lane can publish

struct Coordinates {
  uint3 thread, block;
  dim3 block_size, grid_size;
};

// One value per lane, as the lanes published them.
struct Exchange {
  const char (*slots)[2][kExchangeBytes];
  uint32_t parities;  // which of a lane's two slots holds the value of this exchange

  template <class T>
  CUDASIM_INLINE const T& of(int lane) const {
    return *reinterpret_cast<const T*>(slots[lane][parities >> lane & 1]);
  }
};

uint3 thread_index();
uint3 block_index();
dim3 block_size();
dim3 grid_size();
char* static_shared();   // start of the block's static shared memory
char* dynamic_shared();  // start of its dynamic shared memory
int lane();

void block_barrier(int line);
// Barrier that also counts the threads whose predicate is true.
int block_count(bool predicate, int line);

// Lanes of the warp that reach the same line together.
unsigned converged_lanes(int line);
// Wait for the lanes of the mask that have not left the kernel.
void warp_barrier(unsigned mask, int line);
// The same, with `size` bytes from every lane.
Exchange warp_exchange(unsigned mask, const void* value, size_t size, int line);

// Lockstep warps only: let every lane of the warp do access `site` before one goes on.
void lockstep_access(long site);

// Address of a shared object as the 32-bit handle that PTX takes, and back.
unsigned shared_handle(const void* address);
char* shared_address(unsigned handle);

// Ends the launch with an error that names the kernel and the thread.
[[noreturn]] void fail(const char* message);

template <class T>
CUDASIM_RUNTIME inline Exchange publish(unsigned mask, const T& value, int line) {
  static_assert(sizeof(T) <= kExchangeBytes, "value too large for one warp exchange");
  return warp_exchange(mask, &value, sizeof(T), line);
}

}  // namespace cudasim

static const int warpSize = 32;

// source.py opens every function that mentions them with these; as constants of the function they
// stay in registers over a barrier.
#define CUDASIM_COORDINATES                        \
  const uint3 threadIdx = cudasim::thread_index(); \
  const uint3 blockIdx = cudasim::block_index();   \
  const dim3 blockDim = cudasim::block_size();     \
  const dim3 gridDim = cudasim::grid_size();

#define __syncthreads() cudasim::block_barrier(__LINE__)
#define __syncthreads_count(p) cudasim::block_count((p) != 0, __LINE__)
#define __syncthreads_or(p) (cudasim::block_count((p) != 0, __LINE__) != 0)
#define __syncthreads_and(p) (cudasim::block_count((p) == 0, __LINE__) == 0)
#define __syncwarp(...) cudasim::warp_barrier(cudasim::mask_or_all(__VA_ARGS__), __LINE__)
#define __activemask() cudasim::converged_lanes(__LINE__)

namespace cudasim {
inline unsigned mask_or_all(unsigned mask = 0xffffffffu) { return mask; }
}  // namespace cudasim
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
