#include "scheduler.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "checker.h"

namespace cudasim {

static thread_local std::unique_ptr<BlockRunner> runner_of_thread;
static thread_local BlockRunner* existing_runner;

BlockRunner& BlockRunner::mine() {
  if (!existing_runner) {
    runner_of_thread = std::make_unique<BlockRunner>();
    existing_runner = runner_of_thread.get();
  }
  return *existing_runner;
}

BlockRunner* BlockRunner::existing() { return existing_runner; }

static char* reserve(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(memory);
}

BlockRunner::BlockRunner()
    : fibers_(kMaxThreads), slots_(new char[kMaxThreads][2][kExchangeBytes]) {
  stacks_ = reserve(kMaxThreads * kStackStride);
  arena_ = reserve(kArenaBytes);
  for (int i = 0; i < kMaxThreads; ++i) fibers_[size_t(i)].linear = i;
}

BlockRunner::~BlockRunner() {
  existing_runner = nullptr;
  munmap(stacks_, kMaxThreads * kStackStride);
  munmap(arena_, kArenaBytes);
}

bool BlockRunner::in_stack_guard(const char* address) const {
  return in_stacks(address) && size_t(address - stacks_) % kStackStride < kStackGuard;
}

// ---------------------------------------------------------------- switching

void BlockRunner::fiber_main() {
  BlockRunner& runner = mine();
  for (;;) {
    runner.launch_->kernel->invoke(runner.launch_->arguments);
    runner.current_->state = State::done;
    ++runner.done_;
    runner.yield();
  }
}

void BlockRunner::start_on_own_stack(Fiber& fiber) {
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks_ + size_t(fiber.linear) * kStackStride + kStackGuard;
  context.uc_stack.ss_size = kStackStride - kStackGuard - size_t(fiber.linear) * kStackColour % kStackColours;
  context.uc_link = nullptr;
  makecontext(&context, &BlockRunner::fiber_main, 0);
  fiber.started = true;
  setcontext(&context);
}

void BlockRunner::resume(Fiber& fiber) {
  current_ = &fiber;
  coordinates_.thread = fiber.thread;
  if (_setjmp(scheduler_) == 0) {
    if (fiber.started) _longjmp(fiber.context, 1);
    start_on_own_stack(fiber);
  }
  current_ = nullptr;
}

void BlockRunner::yield() {
  if (_setjmp(current_->context) == 0) _longjmp(scheduler_, 1);
}

void BlockRunner::abandon(const std::string& message, uint64_t offset) {
  launch_->fail_at(message + " (" + where() + ")", offset);
  critical = 0;
  _longjmp(scheduler_, 1);
}

// ---------------------------------------------------------------- one block

void BlockRunner::prepare(Launch& launch, uint64_t block) {
  launch_ = &launch;
  coordinates_.grid_size = launch.grid;
  coordinates_.block_size = launch.block;
  coordinates_.block.x = unsigned(block % launch.grid.x);
  coordinates_.block.y = unsigned(block / launch.grid.x % launch.grid.y);
  coordinates_.block.z = unsigned(block / launch.grid.x / launch.grid.y);
  threads_ = launch.threads();
  waiting_ = done_ = counted_ = 0;
  for (int warp = 0; warp * kWarpSize < threads_; ++warp)
    counts_[warp] = {std::min(kWarpSize, threads_ - warp * kWarpSize), 0, 0};

  // Shared memory holds NaN (or -1) before a block writes it.
  const Kernel& kernel = *launch.kernel;
  for (int i = 0; i < kernel.array_count; ++i)
    memset(arena_ + kernel.arrays[i].offset, 0xFF, kernel.arrays[i].size);
  dynamic_offset_ = align_up(kernel.shared_bytes, 1024);
  memset(arena_ + dynamic_offset_, 0xFF, launch.dynamic_shared);

  for (; guarded_stacks_ < threads_; ++guarded_stacks_)
    mprotect(stacks_ + size_t(guarded_stacks_) * kStackStride, kStackGuard, PROT_NONE);
  unsigned i = 0;
  for (unsigned z = 0; z < launch.block.z; ++z)
    for (unsigned y = 0; y < launch.block.y; ++y)
      for (unsigned x = 0; x < launch.block.x; ++x) {
        Fiber& fiber = fibers_[i++];
        fiber.thread = {x, y, z};
        fiber.state = State::ready;
        fiber.exchanges = 0;
        fiber.async.clear();
      }
  begin_block(*this, block);
}

bool BlockRunner::run(Launch& launch, uint64_t block) {
  prepare(launch, block);
  while (done_ < threads_ && !launch.failed) {
    bool progress = false;
    for (int i = 0; i < threads_; ++i) {
      Fiber& fiber = fibers_[size_t(i)];
      if (fiber.state != State::ready) continue;
      progress = true;
      resume(fiber);
      if (launch.failed) break;
      if (fiber.state == State::done) {
        // Its leaving may be all that a barrier or a collective waited for.
        release_barrier();
        int warp = i / kWarpSize;
        --counts_[warp].alive;
        if (counts_[warp].in_warp == 0) continue;
        unsigned in_warp = lanes(warp, [](const Fiber& f) { return f.state == State::in_warp; });
        if (in_warp) release_warp(warp, fibers_[size_t(warp * 32 + __builtin_ctz(in_warp))].mask);
      }
    }
    if (!progress && !release_blocked()) launch.fail(describe_deadlock());
  }
  if (launch.failed)
    for (int i = 0; i < threads_; ++i) fibers_[size_t(i)].started = false;
  end_block(*this);
  return !launch.failed;
}

std::string BlockRunner::where() const {
  auto triple = [](const char* what, unsigned x, unsigned y, unsigned z) {
    return std::string(what) + " (" + std::to_string(x) + "," + std::to_string(y) + "," +
           std::to_string(z) + ")";
  };
  const Coordinates& c = coordinates_;
  return std::string("kernel ") + launch_->kernel->name + ", " +
         triple("block", c.block.x, c.block.y, c.block.z) + ", " +
         triple("thread", c.thread.x, c.thread.y, c.thread.z);
}

}  // namespace cudasim
