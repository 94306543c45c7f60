#include "launch.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <thread>
#include <vector>

#include "checker.h"
#include "crash.h"
#include "memory.h"
#include "scheduler.h"
#include "settings.h"

namespace cudasim {

Settings& settings() {
  static Settings instance;
  return instance;
}

static void run_blocks(Launch& launch) {
  BlockRunner& runner = BlockRunner::mine();
  const uint64_t blocks = launch.blocks();
  while (!launch.failed) {
    uint64_t block = launch.next_block.fetch_add(1, std::memory_order_relaxed);
    if (block >= blocks || !runner.run(launch, block)) return;
  }
}

// The workers beside the calling thread, and a watchdog that ends launches out of time.
class WorkerPool {
 public:
  explicit WorkerPool(int helpers) {
    for (int i = 0; i < helpers; ++i) {
      std::thread thread([this] { help(); });
      handles_.push_back(thread.native_handle());
      thread.detach();
    }
    std::thread([this] { watch(); }).detach();
  }

  void run(Launch& launch, int helpers) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      launch_ = &launch;
      caller_ = pthread_self();
      deadline_ = std::chrono::steady_clock::now() +
                  std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                      std::chrono::duration<double>(settings().time_budget));
      wanted_ = helpers;
    }
    start_.notify_all();
    run_blocks(launch);
    std::unique_lock<std::mutex> lock(mutex_);
    wanted_ = 0;
    finished_.wait(lock, [this] { return busy_ == 0; });
    launch_ = nullptr;
  }

  int helpers() const { return int(handles_.size()); }

 private:
  void help() {
    SignalStack signal_stack;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      start_.wait(lock, [this] { return wanted_ > 0; });
      --wanted_;
      ++busy_;
      Launch& launch = *launch_;
      lock.unlock();
      run_blocks(launch);
      lock.lock();
      if (--busy_ == 0) finished_.notify_all();
    }
  }

  void watch() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      start_.wait(lock, [this] { return launch_ != nullptr; });
      finished_.wait_for(lock, std::chrono::milliseconds(50));
      if (!launch_ || std::chrono::steady_clock::now() < deadline_) continue;
      pthread_kill(caller_, watchdog_signal());
      for (pthread_t handle : handles_) pthread_kill(handle, watchdog_signal());
    }
  }

  std::mutex mutex_;
  std::condition_variable start_, finished_;
  std::vector<pthread_t> handles_;
  pthread_t caller_{};
  std::chrono::steady_clock::time_point deadline_;
  Launch* launch_ = nullptr;
  int wanted_ = 0, busy_ = 0;
};

static WorkerPool& pool() {
  // Never destroyed: detached threads may outlive main. Made anew after a fork, which keeps only
  // the calling thread.
  static WorkerPool* instance = nullptr;
  static pid_t owner = 0;
  if (owner != getpid()) {
    int cores = int(std::thread::hardware_concurrency());
    instance = new WorkerPool(std::clamp(cores, 1, 16) - 1);
    owner = getpid();
  }
  return *instance;
}

std::string run(Launch& launch) {
  static std::mutex one_launch;
  std::lock_guard<std::mutex> lock(one_launch);
  const int threads = launch.threads();
  size_t static_bytes = 0;
  for (int i = 0; i < launch.kernel->array_count; ++i)
    static_bytes += launch.kernel->arrays[i].size;
  const std::string name = std::string("kernel ") + launch.kernel->name + ": ";
  if (threads < 1 || threads > kMaxThreads)
    return name + std::to_string(threads) + " threads per block; 1 to 1024 are possible";
  if (static_bytes > kMaxStaticShared)
    return name + std::to_string(static_bytes) + " bytes of static shared memory; at most 49152";
  if (align_up(launch.kernel->shared_bytes, 1024) + launch.dynamic_shared >
      BlockRunner::kArenaBytes)
    return name + "too many shared arrays for the emulated device";
  if (static_bytes + launch.dynamic_shared > kMaxDynamicShared)
    return name + std::to_string(static_bytes + launch.dynamic_shared) +
           " bytes of shared memory; at most 232448";

  SignalStack signal_stack;
  SignalGuard guard;
  WorkerPool& workers = pool();
  int helpers = settings().workers > 0 ? settings().workers - 1 : workers.helpers();
  if (settings().instrumented())
    helpers = 0;  // the checker's order of accesses is that of one worker
  else
    forget_initialised();
  uint64_t others = launch.blocks() - 1;
  helpers = int(std::min<uint64_t>({others, uint64_t(std::max(helpers, 0)),
                                    uint64_t(workers.helpers())}));
  if (settings().instrumented()) begin_launch(BlockRunner::mine());
  workers.run(launch, helpers);
  return launch.failed ? launch.error() : std::string();
}

}  // namespace cudasim
