// What the checker remembers of every four bytes: the last write and two reads.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cudasim {

// An access. Epochs count the barriers of all blocks that ever ran checked, one after the other:
// one number tells the launch, the block and the interval between two barriers.
struct Access {
  uint32_t epoch = 0;  // 0: none
  uint32_t offset = 0; // of the instruction, in the kernel's library
  uint16_t warp_epoch = 0;
  uint16_t thread : 10, mask : 4, atomic : 1;

  Access() : thread(0), mask(0), atomic(0) {}
};

struct ShadowCell {
  Access write, read, other_read;
  uint8_t written;  // bytes written: since the block began (shared), or ever (global)
  uint8_t pending;  // bytes that a cp.async under way may write at any moment
};

constexpr uint32_t kHostEpoch = 1;  // of copies from the host
constexpr size_t kGranule = 4;      // bytes per cell

// Zeroed lazily by the system: untouched cells cost no memory.
ShadowCell* make_shadow(size_t bytes);
void free_shadow(ShadowCell* cells, size_t bytes);

}  // namespace cudasim
