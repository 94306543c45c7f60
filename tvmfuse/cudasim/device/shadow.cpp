#include "shadow.h"

#include <sys/mman.h>

#include <new>

#include "checker.h"

namespace cudasim {

static size_t size_of(size_t bytes) { return (bytes / kGranule + 2) * sizeof(ShadowCell); }

ShadowCell* make_shadow(size_t bytes) {
  void* memory = mmap(nullptr, size_of(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<ShadowCell*>(memory);
}

void free_shadow(ShadowCell* cells, size_t bytes) { munmap(cells, size_of(bytes)); }

void host_write(Allocation& allocation, size_t offset, size_t bytes) {
  Access access;
  access.epoch = kHostEpoch;
  for (size_t cell = offset / kGranule; cell * kGranule < offset + bytes; ++cell) {
    allocation.shadow[cell].write = access;
    allocation.shadow[cell].written = 0xf;
  }
}

void release_shadow(Allocation& allocation) {
  if (allocation.shadow) free_shadow(allocation.shadow, allocation.size);
  allocation.shadow = nullptr;
}

}  // namespace cudasim
