// Warp shuffles and votes.
#pragma once
#include "execution.h"

namespace cudasim {

template <class T>
CUDASIM_RUNTIME inline T shuffle(unsigned mask, const T& value, int source, int line) {
  return publish(mask, value, line).template of<T>(source & 31);
}

// First lane of the calling lane's segment of `width` lanes.
inline int segment(int width) { return lane() & ~(width - 1); }

template <class T>
inline T shuffle_index(int line, unsigned mask, T value, int source, int width = 32) {
  return shuffle(mask, value, segment(width) + (source & (width - 1)), line);
}
template <class T>
inline T shuffle_up(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  int source = lane() - int(delta);
  return shuffle(mask, value, source < segment(width) ? lane() : source, line);
}
template <class T>
inline T shuffle_down(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  int source = lane() + int(delta);
  return shuffle(mask, value, source >= segment(width) + width ? lane() : source, line);
}
template <class T>
inline T shuffle_xor(int line, unsigned mask, T value, int lane_mask, int width = 32) {
  int source = lane() ^ lane_mask;
  return shuffle(mask, value, source >= segment(width) + width ? lane() : source, line);
}

// Bit i: lane i is in the mask and its predicate is true.
CUDASIM_RUNTIME inline unsigned ballot(int line, unsigned mask, bool predicate) {
  Exchange exchange = publish(mask, predicate, line);
  unsigned votes = 0;
  for (int i = 0; i < kWarpSize; ++i)
    if (mask >> i & 1 && exchange.of<bool>(i)) votes |= 1u << i;
  return votes;
}

template <class T>
CUDASIM_RUNTIME inline unsigned match_any(int line, unsigned mask, T value) {
  Exchange exchange = publish(mask, value, line);
  unsigned equal = 0;
  for (int i = 0; i < kWarpSize; ++i)
    if (mask >> i & 1 && exchange.of<T>(i) == value) equal |= 1u << i;
  return equal;
}

template <class T, class Combine>
CUDASIM_RUNTIME inline T reduce(int line, unsigned mask, T value, Combine combine) {
  Exchange exchange = publish(mask, value, line);
  bool first = true;
  T result = value;
  for (int i = 0; i < kWarpSize; ++i) {
    if (!(mask >> i & 1)) continue;
    result = first ? exchange.of<T>(i) : combine(result, exchange.of<T>(i));
    first = false;
  }
  return result;
}

}  // namespace cudasim

#define __shfl_sync(...) cudasim::shuffle_index(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) cudasim::shuffle_up(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) cudasim::shuffle_down(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) cudasim::shuffle_xor(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, predicate) cudasim::ballot(__LINE__, mask, (predicate) != 0)
#define __any_sync(mask, predicate) (cudasim::ballot(__LINE__, mask, (predicate) != 0) != 0)
#define __all_sync(mask, predicate) (cudasim::ballot(__LINE__, mask, (predicate) == 0) == 0)
#define __match_any_sync(mask, value) cudasim::match_any(__LINE__, mask, value)
#define __reduce_add_sync(mask, value) \
  cudasim::reduce(__LINE__, mask, value, [](auto a, auto b) { return a + b; })
#define __reduce_max_sync(mask, value) \
  cudasim::reduce(__LINE__, mask, value, [](auto a, auto b) { return a > b ? a : b; })
#define __reduce_min_sync(mask, value) \
  cudasim::reduce(__LINE__, mask, value, [](auto a, auto b) { return a < b ? a : b; })
