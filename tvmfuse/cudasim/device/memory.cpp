#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>

#include "checker.h"
#include "settings.h"

namespace cudasim {

constexpr size_t kAlignment = 256;  // of cudaMalloc

static std::map<const char*, Allocation> allocations;
static std::mutex mutex;

static size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

void* allocate(size_t bytes) {
  // The end touches a guard page up to the alignment; the checker sees the bytes in between.
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  const size_t used = round_up(bytes ? bytes : 1, kAlignment);
  const size_t body = round_up(used, page);
  const size_t total = body + 2 * page;
  void* mapped = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* mapping = static_cast<char*>(mapped);
  if (mprotect(mapping + page, body, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping, total);
    return nullptr;
  }
  char* base = mapping + page + body - used;
  memset(base, 0xFF, used);  // NaN in every float type: garbage must not look like a result
  std::lock_guard<std::mutex> lock(mutex);
  // Only a checked session asks what is initialised.
  bool* initialised = settings().check ? new bool[bytes + 1]() : nullptr;
  allocations[base] = {base, bytes, mapping, total, nullptr, initialised};
  return base;
}

bool release(void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = allocations.find(static_cast<char*>(address));
  if (found == allocations.end()) return false;
  Allocation& allocation = found->second;
  release_shadow(allocation);
  delete[] allocation.initialised;
  munmap(allocation.mapping, allocation.mapping_size);
  allocations.erase(found);
  return true;
}

static Allocation* before(const char* address) {
  auto next = allocations.upper_bound(address);
  return next == allocations.begin() ? nullptr : &std::prev(next)->second;
}

Allocation* allocation_before(const void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  return before(static_cast<const char*>(address));
}

Allocation* find_allocation(const void* address, size_t bytes) {
  Allocation* allocation = allocation_before(address);
  bool inside = allocation && allocation->contains(static_cast<const char*>(address), bytes);
  return inside ? allocation : nullptr;
}

void mark_initialised(void* address, size_t bytes) {
  Allocation* allocation = find_allocation(address, bytes);
  if (!allocation) return;
  size_t offset = size_t(static_cast<char*>(address) - allocation->base);
  if (allocation->initialised) memset(allocation->initialised + offset, 1, bytes);
  if (allocation->shadow) host_write(*allocation, offset, bytes);
}

void forget_initialised() {
  std::lock_guard<std::mutex> lock(mutex);
  for (auto& [base, allocation] : allocations) {
    delete[] allocation.initialised;
    allocation.initialised = nullptr;
    release_shadow(allocation);
  }
}

}  // namespace cudasim
