// Device memory: host memory whose ends are guarded, so that the checker, the copies and the crash
// handler know what belongs to an allocation.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cudasim {

struct ShadowCell;

struct Allocation {
  char* base;
  size_t size;
  char* mapping;
  size_t mapping_size;
  ShadowCell* shadow;  // made by the checker at the first checked access
  bool* initialised;   // per byte, while every writer so far is known; else null

  bool contains(const char* address, size_t bytes) const {
    return address >= base && address + bytes <= base + size;
  }
};

void* allocate(size_t bytes);
// False if no allocation starts there.
bool release(void* address);
// The allocation that holds all the bytes, or null.
Allocation* find_allocation(const void* address, size_t bytes);
// The allocation that starts at or before the address, or null.
Allocation* allocation_before(const void* address);
// A copy or a memset wrote these bytes.
void mark_initialised(void* address, size_t bytes);
// An unchecked kernel ran: nobody knows any more which bytes are initialised.
void forget_initialised();

}  // namespace cudasim
