#include "checker.h"

#include <algorithm>
#include <string>
#include <vector>

#include "findings.h"
#include "scheduler.h"
#include "settings.h"
#include "shadow.h"
#include "trace.h"

namespace cudasim {

namespace {

// State of the one worker that runs instrumented launches.
struct Checker {
  uint32_t epoch = kHostEpoch + 1, block_start = 0, launch_start = 0;
  std::vector<uint32_t> block_epochs;  // of this launch: where each block that ran began
  std::vector<uint64_t> block_numbers;
  std::vector<uint16_t> warp_epochs = std::vector<uint16_t>(kMaxThreads);
  ShadowCell* shared = nullptr;
  std::vector<bool> shared_valid;         // per byte of the arena
  Allocation* recent[64] = {};            // by instruction: most touch one tensor only
} state;

enum class Phase { access, issue, arrival };  // the latter two of a cp.async

// The access under way.
struct Present {
  BlockRunner& runner;
  Access access;
  size_t size;
  bool write;
  const char* memory;
  Phase phase = Phase::access;
};

CudasimSite site_of(const BlockRunner& runner, const Access& access) {
  CudasimSite site{};
  site.offset = access.offset;
  uint64_t block = 0;
  auto after = std::upper_bound(state.block_epochs.begin(), state.block_epochs.end(), access.epoch);
  if (after != state.block_epochs.begin())
    block = state.block_numbers[size_t(after - state.block_epochs.begin()) - 1];
  const dim3 grid = runner.coordinates().grid_size, size = runner.coordinates().block_size;
  const unsigned thread = access.thread;
  site.block[0] = unsigned(block % grid.x);
  site.block[1] = unsigned(block / grid.x % grid.y);
  site.block[2] = unsigned(block / grid.x / grid.y);
  site.thread[0] = thread % size.x;
  site.thread[1] = thread / size.x % size.y;
  site.thread[2] = thread / size.x / size.y;
  return site;
}

void report(const Present& present, const char* kind, const Access* other = nullptr) {
  BlockRunner& runner = present.runner;
  CudasimFinding finding{};
  finding.kind = kind;
  finding.memory = present.memory;
  finding.kernel = runner.launch()->kernel->name;
  finding.library = runner.launch()->code->path.c_str();
  finding.site = site_of(runner, present.access);
  finding.size = unsigned(present.size);
  if (other) {
    finding.has_other = 1;
    finding.other = site_of(runner, *other);
  }
  ++runner.critical;
  add_finding(finding);
  --runner.critical;
}

bool ordered(const Access& earlier, const Access& present) {
  if (earlier.epoch < state.launch_start) return true;
  if (earlier.epoch < state.block_start) return false;  // another block of this launch
  if (earlier.thread == present.thread || earlier.epoch != present.epoch) return true;
  return earlier.thread / kWarpSize == present.thread / kWarpSize &&
         earlier.warp_epoch != present.warp_epoch;
}

bool conflicts(const Access& earlier, const Access& present) {
  return (earlier.mask & present.mask) && !(earlier.atomic && present.atomic) &&
         !ordered(earlier, present);
}

void remember_read(ShadowCell& cell, const Access& present) {
  Access& last = cell.read;
  if (last.epoch == present.epoch && last.thread == present.thread &&
      last.warp_epoch == present.warp_epoch) {
    last.mask |= present.mask;
    return;
  }
  // Keep a second reader that a later write could race with, if possible of another warp.
  if (last.epoch && !ordered(last, present)) {
    const Access& other = cell.other_read;
    bool useless = other.epoch == 0 || ordered(other, present) ||
                   other.thread / kWarpSize == present.thread / kWarpSize;
    if (useless) cell.other_read = last;
  }
  last = present;
}

// One cell's part of an access. `initialised`: the host wrote these bytes.
void check_cell(ShadowCell& cell, const Present& present, bool is_shared, bool initialised) {
  const Access& access = present.access;
  if (is_shared && cell.write.epoch < state.block_start) cell.written = cell.pending = 0;
  if (!present.write || access.atomic)
    if (!initialised && (access.mask & ~cell.written)) report(present, "uninitialised read");
  const bool other_block_matters = !is_shared;
  auto seen = [&](const Access& earlier) {
    return earlier.epoch && (other_block_matters || earlier.epoch >= state.block_start);
  };
  const bool in_flight = present.phase == Phase::access && (cell.pending & access.mask);
  if (in_flight || (seen(cell.write) && conflicts(cell.write, access)))
    report(present, present.write ? "write-write race" : "read-after-write race", &cell.write);
  if (!present.write) {
    remember_read(cell, access);
    return;
  }
  for (const Access* read : {&cell.read, &cell.other_read})
    if (seen(*read) && conflicts(*read, access)) {
      report(present, "write-after-read race", read);
      break;
    }
  cell.write = access;
  if (present.phase == Phase::issue) {
    cell.pending |= access.mask;
    return;
  }
  if (present.phase == Phase::arrival) cell.pending &= uint8_t(~access.mask);
  cell.written |= access.mask;
}

void check_cells(ShadowCell* cells, size_t offset, Present& present, const bool* initialised) {
  size_t end = offset + present.size;
  bool is_shared = cells == state.shared;
  for (size_t cell = offset / kGranule; cell * kGranule < end; ++cell) {
    size_t first = std::max(offset, cell * kGranule), last = std::min(end, (cell + 1) * kGranule);
    present.access.mask =
        uint16_t(((1u << (last - first)) - 1) << (first - cell * kGranule)) & 0xf;
    bool known = !is_shared && (!initialised || std::find(initialised + first, initialised + last,
                                                          false) == initialised + last);
    check_cell(cells[cell], present, is_shared, known);
  }
}

Allocation* allocation_of(const char* address, size_t size, const void* caller) {
  Allocation*& recent = state.recent[reinterpret_cast<uintptr_t>(caller) / 4 % 64];
  if (!recent || !recent->contains(address, size)) recent = find_allocation(address, size);
  return recent;
}

[[noreturn]] void out_of_bounds(const Present& present, const char* address) {
  const char* kind = present.write ? "out-of-bounds write" : "out-of-bounds read";
  report(present, kind);
  std::string text = std::string(kind) + " of " + std::to_string(present.size) + " bytes in " +
                     (present.memory[0] ? present.memory : "unknown") + " memory";
  if (const Allocation* near = *present.memory == 'g' ? allocation_before(address) : nullptr)
    text += ", " + std::to_string(address - near->base) + " bytes after the start of a buffer of " +
            std::to_string(near->size);
  present.runner.abandon(text, present.access.offset);
}

void check(BlockRunner& runner, const char* address, size_t size, bool write, bool atomic,
           const void* caller, bool aligned, Phase phase = Phase::access) {
  if (runner.in_stacks(address) || runner.in_exchange(address)) return;
  Fiber& fiber = *runner.current();
  bool is_shared = runner.in_shared(address);
  const Variant& code = *runner.launch()->code;
  if (is_shared && settings().lockstep && phase != Phase::issue) runner.step(long(uintptr_t(caller) - code.base));
  Present present{runner, {}, size, write, is_shared ? "shared" : "global", phase};
  present.access.epoch = state.epoch;
  present.access.offset = uint32_t(uintptr_t(caller) - code.base);
  present.access.warp_epoch = state.warp_epochs[size_t(fiber.linear)];
  present.access.thread = uint16_t(fiber.linear) & 1023;
  present.access.atomic = atomic;
  if (aligned && (size & (size - 1)) == 0 && uintptr_t(address) % size) {
    report(present, "misaligned access");
    runner.abandon("misaligned access of " + std::to_string(size) + " bytes",
                   present.access.offset);
  }
  if (is_shared) {
    size_t offset = size_t(address - runner.static_shared());
    size_t end = offset + size;
    if (end > state.shared_valid.size() || !state.shared_valid[offset] ||
        !state.shared_valid[end - 1])
      out_of_bounds(present, address);
    if (settings().trace && phase != Phase::issue)
      trace_access(runner, address, size, write, true, present.access.offset);
    if (settings().check) check_cells(state.shared, offset, present, nullptr);
    return;
  }
  Allocation* allocation = allocation_of(address, size, caller);
  if (!allocation) {
    if (code.contains(address)) return;  // a constant or a __device__ variable of the module
    out_of_bounds(present, address);
  }
  if (settings().trace) trace_access(runner, address, size, write, false, present.access.offset);
  if (!settings().check) return;
  if (!allocation->shadow) allocation->shadow = make_shadow(allocation->size);
  check_cells(allocation->shadow, size_t(address - allocation->base), present,
              allocation->initialised);
}

}  // namespace

void checked_access(const void* address, size_t bytes, bool write, const void* caller,
                    bool aligned) {
  BlockRunner* runner = BlockRunner::existing();
  if (runner && runner->current() && settings().instrumented())
    check(*runner, static_cast<const char*>(address), bytes, write, false, caller, aligned);
}

static void async_access(const void* address, size_t bytes, const void* caller, Phase phase) {
  BlockRunner* runner = BlockRunner::existing();
  if (runner && runner->current() && settings().instrumented())
    check(*runner, static_cast<const char*>(address), bytes, true, false, caller, true, phase);
}

void async_issue(const void* address, size_t bytes, const void* caller) {
  async_access(address, bytes, caller, Phase::issue);
}

void async_arrival(const void* address, size_t bytes, const void* caller) {
  async_access(address, bytes, caller, Phase::arrival);
}

void atomic_access(const void* address, size_t bytes, const void* caller) {
  BlockRunner* runner = BlockRunner::existing();
  if (runner && runner->current() && settings().instrumented())
    check(*runner, static_cast<const char*>(address), bytes, true, true, caller, true);
}

void begin_launch(BlockRunner& runner) {
  if (!state.shared) state.shared = make_shadow(BlockRunner::kArenaBytes);
  state.launch_start = ++state.epoch;
  state.block_epochs.clear();
  state.block_numbers.clear();
  std::fill(std::begin(state.recent), std::end(state.recent), nullptr);
  (void)runner;
}

void begin_block(BlockRunner& runner, uint64_t block) {
  if (!settings().instrumented()) return;
  if (state.block_epochs.empty()) {
    const Kernel& kernel = *runner.launch()->kernel;
    state.shared_valid.assign(runner.shared_bytes(), false);
    auto valid = state.shared_valid.begin();
    for (int i = 0; i < kernel.array_count; ++i)
      std::fill_n(valid + long(kernel.arrays[i].offset), kernel.arrays[i].size, true);
    std::fill_n(state.shared_valid.end() - long(runner.launch()->dynamic_shared),
                runner.launch()->dynamic_shared, true);
  }
  state.block_start = ++state.epoch;
  state.block_epochs.push_back(state.epoch);
  state.block_numbers.push_back(block);
}

void end_block(BlockRunner& runner) {
  if (settings().trace) trace_block_end(runner);
}

void pass_barrier(BlockRunner&) {
  if (settings().instrumented()) ++state.epoch;
}

void pass_warp_barrier(BlockRunner&, int warp, unsigned group) {
  if (!settings().instrumented()) return;
  for (unsigned left = group; left; left &= left - 1)
    ++state.warp_epochs[size_t(warp * kWarpSize + __builtin_ctz(left))];
}

void report_divergence(BlockRunner& runner, int line, int other_line) {
  CudasimFinding finding{};
  finding.kind = "divergent barrier";
  finding.memory = "";
  finding.kernel = runner.launch()->kernel->name;
  finding.library = runner.launch()->code->path.c_str();
  finding.site.line = line;
  finding.has_other = 1;
  finding.other.line = other_line;
  add_finding(finding);
}

}  // namespace cudasim
