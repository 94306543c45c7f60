// One kernel launch, shared by the workers that run its blocks.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "kernel_table.h"
#include "module.h"

namespace cudasim {

struct Launch {
  const Kernel* kernel;
  const Variant* code;
  dim3 grid, block;
  size_t dynamic_shared;
  void** arguments;

  std::atomic<uint64_t> next_block{0};
  std::atomic<bool> failed{false};

  int threads() const { return int(block.x * block.y * block.z); }
  uint64_t blocks() const { return uint64_t(grid.x) * grid.y * grid.z; }

  // The first failure wins; the others are mostly its consequences.
  void fail(const std::string& message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failed.exchange(true)) error_ = message;
  }
  const std::string& error() const { return error_; }
  // Where the first failure happened, as an offset behind the instruction; 0: not in the kernel.
  void fail_at(const std::string& message, uint64_t offset) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failed.exchange(true)) return;
    error_ = message;
    offset_ = offset;
  }
  uint64_t error_offset() const { return offset_; }

 private:
  std::mutex mutex_;
  std::string error_;
  uint64_t offset_ = 0;
};

// Runs every block. Returns an error that names the kernel, or an empty string.
std::string run(Launch& launch);

}  // namespace cudasim
