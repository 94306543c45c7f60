// Runs the blocks of a launch on one worker: one fiber per CUDA thread.
//
// A fiber runs until it must wait (barrier, warp collective) or ends; the scheduler then resumes
// the next fiber that can go on. Fibers never leave their worker. They live as long as it, and
// start the next block by going round their loop, so starting a CUDA thread costs one switch.
#pragma once
#include <setjmp.h>

#include <memory>
#include <string>
#include <vector>

#include "async_queue.h"
#include "launch.h"

namespace cudasim {

constexpr int kMaxThreads = 1024;
constexpr size_t kMaxDynamicShared = 232448;  // of sm_90 and sm_100, opt-in
constexpr size_t kMaxStaticShared = 49152;

enum class State : uint8_t { ready, at_barrier, in_warp, converging, stepping, done };

// What the scheduler looks at comes first: one cache line.
struct alignas(64) Fiber {
  State state = State::done;
  bool started = false;
  int linear = 0;
  uint3 thread{};
  int line = 0;             // where it waits
  long site = 0;            // the access a lockstep warp does together
  unsigned mask = 0;        // lanes of its collective, then of its converged group
  uint32_t parities = 0;    // see Exchange
  uint32_t exchanges = 0;   // collectives completed
  AsyncQueue async;
  jmp_buf context;
};

class BlockRunner {
 public:
  BlockRunner();
  ~BlockRunner();
  // The calling worker's runner, made on first use.
  static BlockRunner& mine();
  // The same without making one: safe in a signal handler.
  static BlockRunner* existing();

  // False if the block failed; the launch then holds the error.
  bool run(Launch& launch, uint64_t block);

  // ---- called on a fiber
  void barrier(int line);
  int count(bool predicate, int line);
  void warp_wait(unsigned mask, int line);
  Exchange exchange(unsigned mask, const void* value, size_t size, int line);
  unsigned converge(int line);
  void step(long site);
  [[noreturn]] void abandon(const std::string& message, uint64_t offset = 0);

  // ---- state that the kernel, the checker and the crash handler read
  Fiber* current() const { return current_; }
  int lane() const { return current_->linear % kWarpSize; }
  const Coordinates& coordinates() const { return coordinates_; }
  Launch* launch() const { return launch_; }
  char* static_shared() const { return arena_; }
  char* dynamic_shared() const { return arena_ + dynamic_offset_; }
  size_t shared_bytes() const { return dynamic_offset_ + launch_->dynamic_shared; }
  bool in_shared(const char* address) const {
    return address >= arena_ && address < arena_ + kArenaBytes;
  }
  bool in_stacks(const char* address) const {
    return address >= stacks_ && address < stacks_ + kMaxThreads * kStackStride;
  }
  // What lanes publish to each other: memory of the device, not of the kernel.
  bool in_exchange(const char* address) const {
    const char* slots = &slots_[0][0][0];
    return address >= slots && address < slots + kMaxThreads * 2 * kExchangeBytes;
  }
  bool in_stack_guard(const char* address) const;
  std::string where() const;  // "kernel k, block (x,y,z), thread (x,y,z)"

  // Above zero while the runtime holds locks or changes containers: no asynchronous abandon.
  int critical = 0;

  static constexpr size_t kArenaBytes = 1 << 20;
  static constexpr size_t kStackGuard = 64 << 10;
  // Fibers that wait at the same place have the same depth of stack. Their tops differ by this
  // many bytes, modulo the last one, so that they do not all compete for the same cache sets.
  static constexpr size_t kStackColour = 17 * 64, kStackColours = 64 << 10;
  static constexpr size_t kStackStride = 384 << 10;

 private:
  static void fiber_main();
  void prepare(Launch& launch, uint64_t block);
  void resume(Fiber& fiber);
  void yield();
  void start_on_own_stack(Fiber& fiber);
  void release_barrier();
  bool release_warp(int warp, unsigned mask);
  bool release_converged(int warp);
  bool release_step(int warp);
  bool release_blocked();
  std::string describe_deadlock() const;
  // Lanes of the warp for which `test` holds, as a mask.
  template <class Test>
  unsigned lanes(int warp, Test test) const;

  Launch* launch_ = nullptr;
  Fiber* current_ = nullptr;
  Coordinates coordinates_{};
  jmp_buf scheduler_;
  std::vector<Fiber> fibers_;
  std::unique_ptr<char[][2][kExchangeBytes]> slots_;  // what each thread published
  char* stacks_ = nullptr;
  int guarded_stacks_ = 0;
  char* arena_ = nullptr;
  size_t dynamic_offset_ = 0;
  // Per warp, so that an arrival need not look at the other lanes: lanes that have not left the
  // kernel, that wait in a collective, that wait for their converged group.
  struct WarpCounts {
    int alive = 0, in_warp = 0, converging = 0;
  };
  WarpCounts counts_[kMaxThreads / kWarpSize];
  int threads_ = 0, waiting_ = 0, done_ = 0, counted_ = 0, count_result_ = 0;
};

template <class Test>
unsigned BlockRunner::lanes(int warp, Test test) const {
  unsigned mask = 0;
  for (int lane = 0; lane < kWarpSize && warp * kWarpSize + lane < threads_; ++lane)
    if (test(fibers_[size_t(warp * kWarpSize + lane)])) mask |= 1u << lane;
  return mask;
}

}  // namespace cudasim
