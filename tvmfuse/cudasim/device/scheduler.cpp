#include "scheduler.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <climits>
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
  context.uc_stack.ss_size = kStackStride - kStackGuard;
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

void BlockRunner::abandon(const std::string& message) {
  launch_->fail(message + " (" + where() + ")");
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

// ---------------------------------------------------------------- block barriers

void BlockRunner::release_barrier() {
  if (waiting_ == 0 || waiting_ + done_ != threads_) return;
  int line = -1;
  for (int i = 0; i < threads_; ++i) {
    Fiber& fiber = fibers_[size_t(i)];
    if (fiber.state != State::at_barrier) continue;
    if (line >= 0 && fiber.line != line) {
      launch_->fail("divergent __syncthreads(): some threads wait at line " +
                    std::to_string(line) + ", others at line " + std::to_string(fiber.line) +
                    " (kernel " + launch_->kernel->name + ")");
      report_divergence(*this, line, fiber.line);
      return;
    }
    line = fiber.line;
  }
  for (int i = 0; i < threads_; ++i)
    if (fibers_[size_t(i)].state == State::at_barrier) fibers_[size_t(i)].state = State::ready;
  waiting_ = 0;
  count_result_ = counted_;
  counted_ = 0;
  pass_barrier(*this);
}

void BlockRunner::barrier(int line) {
  current_->state = State::at_barrier;
  current_->line = line;
  ++waiting_;
  release_barrier();
  if (current_->state != State::ready || launch_->failed) yield();
}

int BlockRunner::count(bool predicate, int line) {
  counted_ += predicate;
  barrier(line);
  return count_result_;
}

// ---------------------------------------------------------------- warp collectives

template <class Test>
unsigned BlockRunner::lanes(int warp, Test test) const {
  unsigned mask = 0;
  for (int lane = 0; lane < kWarpSize && warp * kWarpSize + lane < threads_; ++lane)
    if (test(fibers_[size_t(warp * kWarpSize + lane)])) mask |= 1u << lane;
  return mask;
}

// Lets the lanes of the mask go on if all of them have arrived.
bool BlockRunner::release_warp(int warp, unsigned mask) {
  Fiber* first = nullptr;
  uint32_t parities = 0;
  unsigned group =
      mask & lanes(warp, [](const Fiber& fiber) { return fiber.state != State::done; });
  for (unsigned left = group; left; left &= left - 1) {
    int lane = __builtin_ctz(left);
    Fiber& fiber = fibers_[size_t(warp * kWarpSize + lane)];
    if (fiber.state != State::in_warp || fiber.mask != mask) return false;
    if (!first) first = &fiber;
    if (fiber.line != first->line) {
      launch_->fail("divergent warp collective: some lanes wait at line " +
                    std::to_string(first->line) + ", others at line " +
                    std::to_string(fiber.line) + " (kernel " + launch_->kernel->name + ")");
      report_divergence(*this, first->line, fiber.line);
      return false;
    }
    parities |= (fiber.exchanges & 1) << lane;
  }
  for (unsigned left = group; left; left &= left - 1) {
    Fiber& fiber = fibers_[size_t(warp * kWarpSize + __builtin_ctz(left))];
    fiber.state = State::ready;
    fiber.parities = parities;
    ++fiber.exchanges;
  }
  pass_warp_barrier(*this, warp, group);
  return true;
}

void BlockRunner::warp_wait(unsigned mask, int line) {
  Fiber& fiber = *current_;
  if (!(mask >> lane() & 1)) abandon("warp collective whose mask lacks the calling lane");
  fiber.state = State::in_warp;
  fiber.mask = mask;
  fiber.line = line;
  if (!release_warp(fiber.linear / kWarpSize, mask)) yield();
}

Exchange BlockRunner::exchange(unsigned mask, const void* value, size_t size, int line) {
  memcpy(slots_[size_t(current_->linear)][current_->exchanges & 1], value, size);
  warp_wait(mask, line);
  return {&slots_[size_t(current_->linear / kWarpSize * kWarpSize)], current_->parities};
}

unsigned BlockRunner::converge(int line) {
  current_->state = State::converging;
  current_->line = line;
  int warp = current_->linear / kWarpSize;
  auto unfinished = [](const Fiber& fiber) { return fiber.state != State::done; };
  auto arrived = [=](const Fiber& fiber) {
    return fiber.state == State::converging && fiber.line == line;
  };
  if (lanes(warp, unfinished) != lanes(warp, arrived) || !release_converged(warp)) yield();
  return current_->mask;
}

void BlockRunner::step(long site) {
  current_->state = State::stepping;
  current_->site = site;
  yield();
}

// ---------------------------------------------------------------- nobody can go on

// The lanes that wait for their converged group, by the first line: that is the group.
bool BlockRunner::release_converged(int warp) {
  int line = INT_MAX;
  lanes(warp, [&](const Fiber& fiber) {
    if (fiber.state == State::converging && fiber.line < line) line = fiber.line;
    return false;
  });
  unsigned group = lanes(warp, [=](const Fiber& fiber) {
    return fiber.state == State::converging && fiber.line == line;
  });
  for (unsigned left = group; left; left &= left - 1) {
    Fiber& fiber = fibers_[size_t(warp * kWarpSize + __builtin_ctz(left))];
    fiber.state = State::ready;
    fiber.mask = group;
  }
  return group != 0;
}

bool BlockRunner::release_step(int warp) {
  long site = LONG_MAX;
  lanes(warp, [&](const Fiber& fiber) {
    if (fiber.state == State::stepping && fiber.site < site) site = fiber.site;
    return false;
  });
  unsigned group = lanes(warp, [=](const Fiber& fiber) {
    return fiber.state == State::stepping && fiber.site == site;
  });
  for (unsigned left = group; left; left &= left - 1)
    fibers_[size_t(warp * kWarpSize + __builtin_ctz(left))].state = State::ready;
  if (group) pass_warp_barrier(*this, warp, group);
  return group != 0;
}

bool BlockRunner::release_blocked() {
  bool released = false;
  for (int warp = 0; warp * kWarpSize < threads_; ++warp)
    released |= release_step(warp) || release_converged(warp);
  return released;
}

std::string BlockRunner::describe_deadlock() const {
  std::string text = std::string("deadlock in kernel ") + launch_->kernel->name + ":";
  int listed = 0;
  for (int i = 0; i < threads_ && listed < 4; ++i) {
    const Fiber& fiber = fibers_[size_t(i)];
    if (fiber.state == State::done || fiber.state == State::ready) continue;
    if (i > 0 && fibers_[size_t(i - 1)].state == fiber.state &&
        fibers_[size_t(i - 1)].line == fiber.line)
      continue;
    text += (listed++ ? "; thread (" : " thread (") + std::to_string(fiber.thread.x) + "," +
            std::to_string(fiber.thread.y) + "," + std::to_string(fiber.thread.z) + ") waits at " +
            (fiber.state == State::at_barrier ? "__syncthreads()" : "a warp collective") +
            " in line " + std::to_string(fiber.line);
  }
  return text;
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
