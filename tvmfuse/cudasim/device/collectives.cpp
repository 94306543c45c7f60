// Where CUDA threads wait for each other: block barriers, warp collectives, converged groups, and
// what happens when nobody can go on.
#include <algorithm>
#include <climits>
#include <cstring>

#include "checker.h"
#include "scheduler.h"

namespace cudasim {

// ---------------------------------------------------------------- block barriers

void BlockRunner::release_barrier() {
  if (waiting_ == 0 || waiting_ + done_ != threads_) return;
  int line = -1;
  for (int i = 0; i < threads_; ++i) {
    Fiber& fiber = fibers_[size_t(i)];
    if (fiber.state != State::at_barrier) continue;
    if (line >= 0 && fiber.line != line) {
      launch_->fail("divergent __syncthreads(): some threads wait at line " +
                    std::to_string(line) + ", others at line " + std::to_string(fiber.line) +
                    " (kernel " + launch_->kernel->name + ")");
      report_divergence(*this, line, fiber.line);
      return;
    }
    line = fiber.line;
  }
  for (int i = 0; i < threads_; ++i)
    if (fibers_[size_t(i)].state == State::at_barrier) fibers_[size_t(i)].state = State::ready;
  waiting_ = 0;
  count_result_ = counted_;
  counted_ = 0;
  pass_barrier(*this);
}

void BlockRunner::barrier(int line) {
  current_->state = State::at_barrier;
  current_->line = line;
  ++waiting_;
  release_barrier();
  if (current_->state != State::ready || launch_->failed) yield();
}

int BlockRunner::count(bool predicate, int line) {
  counted_ += predicate;
  barrier(line);
  return count_result_;
}

// ---------------------------------------------------------------- warp collectives

// Lets the lanes of the mask go on if all of them have arrived.
bool BlockRunner::release_warp(int warp, unsigned mask) {
  if (counts_[warp].in_warp < std::min(__builtin_popcount(mask), counts_[warp].alive)) return false;
  Fiber* first = nullptr;
  uint32_t parities = 0;
  unsigned group =
      mask & lanes(warp, [](const Fiber& fiber) { return fiber.state != State::done; });
  for (unsigned left = group; left; left &= left - 1) {
    int lane = __builtin_ctz(left);
    Fiber& fiber = fibers_[size_t(warp * kWarpSize + lane)];
    if (fiber.state != State::in_warp || fiber.mask != mask) return false;
    if (!first) first = &fiber;
    if (fiber.line != first->line) {
      launch_->fail("divergent warp collective: some lanes wait at line " +
                    std::to_string(first->line) + ", others at line " +
                    std::to_string(fiber.line) + " (kernel " + launch_->kernel->name + ")");
      report_divergence(*this, first->line, fiber.line);
      return false;
    }
    parities |= (fiber.exchanges & 1) << lane;
  }
  for (unsigned left = group; left; left &= left - 1) {
    Fiber& fiber = fibers_[size_t(warp * kWarpSize + __builtin_ctz(left))];
    fiber.state = State::ready;
    fiber.parities = parities;
    ++fiber.exchanges;
  }
  counts_[warp].in_warp -= __builtin_popcount(group);
  pass_warp_barrier(*this, warp, group);
  return true;
}

void BlockRunner::warp_wait(unsigned mask, int line) {
  Fiber& fiber = *current_;
  if (!(mask >> lane() & 1)) abandon("warp collective whose mask lacks the calling lane");
  fiber.state = State::in_warp;
  ++counts_[fiber.linear / kWarpSize].in_warp;
  fiber.mask = mask;
  fiber.line = line;
  if (!release_warp(fiber.linear / kWarpSize, mask)) yield();
}

Exchange BlockRunner::exchange(unsigned mask, const void* value, size_t size, int line) {
  memcpy(slots_[size_t(current_->linear)][current_->exchanges & 1], value, size);
  warp_wait(mask, line);
  return {&slots_[size_t(current_->linear / kWarpSize * kWarpSize)], current_->parities};
}

unsigned BlockRunner::converge(int line) {
  current_->state = State::converging;
  current_->line = line;
  int warp = current_->linear / kWarpSize;
  // Lanes that came to different lines are sorted out when nobody can go on.
  auto arrived = [=](const Fiber& fiber) {
    return fiber.state == State::converging && fiber.line == line;
  };
  const int alive = counts_[warp].alive;
  bool together = ++counts_[warp].converging == alive &&
                  __builtin_popcount(lanes(warp, arrived)) == alive && release_converged(warp);
  if (!together) yield();
  return current_->mask;
}

void BlockRunner::step(long site) {
  current_->state = State::stepping;
  current_->site = site;
  yield();
}

// ---------------------------------------------------------------- nobody can go on

// The lanes that wait for their converged group, by the first line: that is the group.
bool BlockRunner::release_converged(int warp) {
  int line = INT_MAX;
  lanes(warp, [&](const Fiber& fiber) {
    if (fiber.state == State::converging && fiber.line < line) line = fiber.line;
    return false;
  });
  unsigned group = lanes(warp, [=](const Fiber& fiber) {
    return fiber.state == State::converging && fiber.line == line;
  });
  for (unsigned left = group; left; left &= left - 1) {
    Fiber& fiber = fibers_[size_t(warp * kWarpSize + __builtin_ctz(left))];
    fiber.state = State::ready;
    fiber.mask = group;
  }
  counts_[warp].converging -= __builtin_popcount(group);
  return group != 0;
}

bool BlockRunner::release_step(int warp) {
  long site = LONG_MAX;
  lanes(warp, [&](const Fiber& fiber) {
    if (fiber.state == State::stepping && fiber.site < site) site = fiber.site;
    return false;
  });
  unsigned group = lanes(warp, [=](const Fiber& fiber) {
    return fiber.state == State::stepping && fiber.site == site;
  });
  for (unsigned left = group; left; left &= left - 1)
    fibers_[size_t(warp * kWarpSize + __builtin_ctz(left))].state = State::ready;
  if (group) pass_warp_barrier(*this, warp, group);
  return group != 0;
}

bool BlockRunner::release_blocked() {
  bool released = false;
  for (int warp = 0; warp * kWarpSize < threads_; ++warp)
    released |= release_step(warp) || release_converged(warp);
  return released;
}

std::string BlockRunner::describe_deadlock() const {
  std::string text = std::string("deadlock in kernel ") + launch_->kernel->name + ":";
  int listed = 0;
  for (int i = 0; i < threads_ && listed < 4; ++i) {
    const Fiber& fiber = fibers_[size_t(i)];
    if (fiber.state == State::done || fiber.state == State::ready) continue;
    if (i > 0 && fibers_[size_t(i - 1)].state == fiber.state &&
        fibers_[size_t(i - 1)].line == fiber.line)
      continue;
    text += (listed++ ? "; thread (" : " thread (") + std::to_string(fiber.thread.x) + "," +
            std::to_string(fiber.thread.y) + "," + std::to_string(fiber.thread.z) + ") waits at " +
            (fiber.state == State::at_barrier ? "__syncthreads()" : "a warp collective") +
            " in line " + std::to_string(fiber.line);
  }
  return text;
}

}  // namespace cudasim
