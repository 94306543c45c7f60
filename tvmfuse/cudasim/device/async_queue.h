// The asynchronous copies that one CUDA thread has issued and not waited for.
#pragma once
#include <cstddef>
#include <deque>
#include <vector>

namespace cudasim {

struct AsyncCopy {
  char* destination;
  std::vector<char> bytes;
};

struct AsyncQueue {
  std::vector<AsyncCopy> open;                // issued, not committed
  std::deque<std::vector<AsyncCopy>> groups;  // committed, oldest first

  void clear() {
    if (!open.empty()) open.clear();
    if (!groups.empty()) groups.clear();
  }
};

}  // namespace cudasim
