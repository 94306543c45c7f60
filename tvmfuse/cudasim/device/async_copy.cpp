#include "async_copy.h"

#include <cstring>
#include <string>

#include "checker.h"
#include "scheduler.h"

namespace cudasim {

static void arrive(const std::vector<AsyncCopy>& group, const void* caller) {
  for (const AsyncCopy& copy : group) {
    async_arrival(copy.destination, copy.bytes.size(), caller);
    memcpy(copy.destination, copy.bytes.data(), copy.bytes.size());
  }
}

void async_copy(unsigned destination, const void* source, int bytes, int source_bytes) {
  BlockRunner& runner = BlockRunner::mine();
  if ((bytes != 4 && bytes != 8 && bytes != 16) || source_bytes < 0 || source_bytes > bytes)
    runner.abandon("cp.async of " + std::to_string(bytes) + " bytes from " +
                   std::to_string(source_bytes) + ": the size must be 4, 8 or 16");
  if (destination % unsigned(bytes) || reinterpret_cast<uintptr_t>(source) % unsigned(bytes))
    runner.abandon("cp.async of " + std::to_string(bytes) + " bytes at a misaligned address");
  if (source_bytes) checked_access(source, size_t(source_bytes), false, __builtin_return_address(0));
  char* target = shared_address(destination);
  async_issue(target, size_t(bytes), __builtin_return_address(0));
  ++runner.critical;
  AsyncCopy copy{target, std::vector<char>(size_t(bytes))};
  if (source_bytes) memcpy(copy.bytes.data(), source, size_t(source_bytes));
  runner.current()->async.open.push_back(std::move(copy));
  --runner.critical;
}

void async_commit() {
  BlockRunner& runner = BlockRunner::mine();
  AsyncQueue& queue = runner.current()->async;
  ++runner.critical;
  queue.groups.push_back(std::move(queue.open));
  queue.open.clear();
  --runner.critical;
}

void async_wait(int pending) {
  BlockRunner& runner = BlockRunner::mine();
  AsyncQueue& queue = runner.current()->async;
  while (int(queue.groups.size()) > pending) {
    arrive(queue.groups.front(), __builtin_return_address(0));
    ++runner.critical;
    queue.groups.pop_front();
    --runner.critical;
  }
}

void async_wait_all() {
  async_commit();
  async_wait(0);
}

}  // namespace cudasim
