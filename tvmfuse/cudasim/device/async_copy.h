// cp.async: a copy from global to shared memory whose bytes arrive only at the wait.
#pragma once
#include "execution.h"

namespace cudasim {

// Copies `source_bytes` and fills up to `bytes` with zeros, as the zero-fill form of cp.async does.
void async_copy(unsigned destination, const void* source, int bytes, int source_bytes);
void async_commit();
// Completes all but the newest `pending` groups of the calling thread.
void async_wait(int pending);
// Completes everything, committed or not.
void async_wait_all();

}  // namespace cudasim

#define __cvta_generic_to_shared(address) cudasim::shared_handle((const void*)(address))
