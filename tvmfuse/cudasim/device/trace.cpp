#include "trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "checker.h"
#include "scheduler.h"
#include "settings.h"

namespace cudasim {

namespace {

constexpr uintptr_t kSectorBytes = 32, kBankBytes = 4;
constexpr size_t kBanks = 32;

struct Record {
  uint32_t offset, occurrence;  // of the instruction; how often the thread came there before
  uint16_t warp, size;
  bool write, is_shared;
  uintptr_t address;

  auto request() const { return std::make_tuple(offset, warp, occurrence); }
};

std::map<std::string, CudasimCounters> by_kernel;
std::vector<Record> records;                         // of the block under way
std::unordered_map<uint64_t, uint32_t> occurrences;  // by instruction and thread

CudasimCounters& counters_of(const BlockRunner& runner) {
  return by_kernel[runner.launch()->kernel->name];
}

using KernelOfLibrary = std::pair<std::string, std::string>;
std::map<KernelOfLibrary, std::vector<uint64_t>> visits_of;
std::vector<uint64_t>* visits_now;  // those of `visited_launch`
const Launch* visited_launch;

using Iterator = std::vector<Record>::const_iterator;

size_t distinct(Iterator begin, Iterator end, uintptr_t unit) {
  std::set<uintptr_t> units;
  for (auto record = begin; record != end; ++record)
    for (uintptr_t u = record->address / unit; u <= (record->address + record->size - 1) / unit; ++u)
      units.insert(u);
  return units.size();
}

// Passes over the banks: lanes with wide accesses are served a part of the warp at a time; within
// a part, different words of one bank need one pass each.
size_t wavefronts(Iterator begin, Iterator end) {
  const long lanes = std::max<long>(1, long(kBanks) / std::max(1, begin->size / int(kBankBytes)));
  size_t passes = 0;
  for (auto part = begin; part < end; part += std::min<long>(lanes, end - part)) {
    std::map<uintptr_t, std::set<uintptr_t>> words_of_bank;
    for (auto record = part; record != part + std::min<long>(lanes, end - part); ++record)
      for (uintptr_t word = record->address / kBankBytes;
           word <= (record->address + record->size - 1) / kBankBytes; ++word)
        words_of_bank[word % kBanks].insert(word);
    size_t most = 1;
    for (const auto& [bank, words] : words_of_bank) most = std::max(most, words.size());
    passes += most;
  }
  return passes;
}

}  // namespace

void trace_access(BlockRunner& runner, const char* address, size_t bytes, bool write,
                  bool is_shared, uint32_t offset) {
  ++runner.critical;
  unsigned thread = unsigned(runner.current()->linear);
  uint32_t occurrence = occurrences[uint64_t(offset) << 10 | thread]++;
  records.push_back({offset, occurrence, uint16_t(thread / kWarpSize), uint16_t(bytes), write,
                     is_shared, reinterpret_cast<uintptr_t>(address)});
  --runner.critical;
}

void trace_basic_block(const BlockRunner& runner, uint64_t offset) {
  const Launch* launch = runner.launch();
  if (visited_launch != launch) {
    visits_now = &visits_of[{launch->kernel->name, launch->code->path}];
    visited_launch = launch;
  }
  if (offset >= visits_now->size()) visits_now->resize(offset + 1);
  ++(*visits_now)[offset];
}

void basic_block(const void* caller) {
  if (!settings().trace) return;
  BlockRunner* runner = BlockRunner::existing();
  if (!runner || !runner->current()) return;
  ++runner->critical;
  trace_basic_block(*runner, uintptr_t(caller) - runner->launch()->code->base);
  --runner->critical;
}

void trace_block_end(BlockRunner& runner) {
  visited_launch = nullptr;  // the next launch may have the same address
  std::stable_sort(records.begin(), records.end(), [](const Record& a, const Record& b) {
    return a.request() < b.request();
  });
  CudasimCounters& counters = counters_of(runner);
  for (auto begin = records.cbegin(); begin != records.cend();) {
    auto end = std::find_if(begin, records.cend(), [&](const Record& record) {
      return record.request() != begin->request();
    });
    CudasimTraffic& traffic = begin->is_shared
                                  ? (begin->write ? counters.shared_write : counters.shared_read)
                                  : (begin->write ? counters.global_write : counters.global_read);
    size_t bytes = 0;
    for (auto record = begin; record != end; ++record) bytes += record->size;
    // Lanes that read the same words share them: the ideal counts each word once.
    size_t words = distinct(begin, end, kBankBytes);
    size_t unit = begin->is_shared ? kBanks : kSectorBytes / kBankBytes;
    ++traffic.requests;
    traffic.bytes += bytes;
    traffic.ideal += (words + unit - 1) / unit;
    traffic.transactions +=
        begin->is_shared ? wavefronts(begin, end) : distinct(begin, end, kSectorBytes);
    begin = end;
  }
  records.clear();
  occurrences.clear();
}

void count_matrix_flops(int m, int n, int k) {
  if (settings().trace)
    counters_of(BlockRunner::mine()).matrix_flops += 2 * uint64_t(m) * uint64_t(n) * uint64_t(k);
}

}  // namespace cudasim

void cudasim_begin_trace() {
  cudasim::by_kernel.clear();
  cudasim::visits_of.clear();
  cudasim::visited_launch = nullptr;
}

int cudasim_visits_count() { return int(cudasim::visits_of.size()); }

int cudasim_visits_get(int index, CudasimVisits* visits) {
  if (index < 0 || index >= cudasim_visits_count()) return 1;
  const auto& [key, counts] = *std::next(cudasim::visits_of.begin(), index);
  *visits = {key.first.c_str(), key.second.c_str(), counts.data(), counts.size()};
  return 0;
}

int cudasim_counters_count() { return int(cudasim::by_kernel.size()); }

int cudasim_counters_get(int index, CudasimCounters* counters) {
  if (index < 0 || index >= cudasim_counters_count()) return 1;
  auto entry = std::next(cudasim::by_kernel.begin(), index);
  *counters = entry->second;
  counters->kernel = entry->first.c_str();
  return 0;
}
