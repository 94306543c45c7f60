// The functions of execution.h: they act on the runner of the calling worker.
#include "execution.h"

#include "scheduler.h"

namespace cudasim {

uint3 thread_index() { return BlockRunner::mine().coordinates().thread; }
uint3 block_index() { return BlockRunner::mine().coordinates().block; }
dim3 block_size() { return BlockRunner::mine().coordinates().block_size; }
dim3 grid_size() { return BlockRunner::mine().coordinates().grid_size; }
char* static_shared() { return BlockRunner::mine().static_shared(); }
char* dynamic_shared() { return BlockRunner::mine().dynamic_shared(); }
int lane() { return BlockRunner::mine().lane(); }
void block_barrier(int line) { BlockRunner::mine().barrier(line); }
int block_count(bool predicate, int line) { return BlockRunner::mine().count(predicate, line); }
unsigned converged_lanes(int line) { return BlockRunner::mine().converge(line); }
void warp_barrier(unsigned mask, int line) { BlockRunner::mine().warp_wait(mask, line); }

Exchange warp_exchange(unsigned mask, const void* value, size_t size, int line) {
  return BlockRunner::mine().exchange(mask, value, size, line);
}

void lockstep_access(long site) { BlockRunner::mine().step(site); }

unsigned shared_handle(const void* address) {
  BlockRunner& runner = BlockRunner::mine();
  const char* byte = static_cast<const char*>(address);
  if (!runner.in_shared(byte)) runner.abandon("__cvta_generic_to_shared of a global address");
  return unsigned(byte - runner.static_shared());
}

char* shared_address(unsigned handle) {
  BlockRunner& runner = BlockRunner::mine();
  if (handle >= BlockRunner::kArenaBytes) runner.abandon("shared address out of range");
  return runner.static_shared() + handle;
}

void fail(const char* message) { BlockRunner::mine().abandon(message); }

}  // namespace cudasim
