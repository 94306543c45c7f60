#include "findings.h"

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

namespace {

std::mutex mutex;
std::deque<CudasimFinding> findings;
std::set<std::string> texts;  // keeps the strings of the findings
using Place = std::tuple<std::string, std::string, std::string, uint64_t, int>;
std::map<Place, size_t> by_place;

const char* keep(const char* text) { return texts.insert(text ? text : "").first->c_str(); }

}  // namespace

namespace cudasim {

void add_finding(const CudasimFinding& finding) {
  std::lock_guard<std::mutex> lock(mutex);
  Place place{finding.kind, finding.kernel, finding.library, finding.site.offset,
              finding.site.line};
  auto [entry, is_new] = by_place.try_emplace(place, findings.size());
  if (!is_new) {
    ++findings[entry->second].count;
    return;
  }
  CudasimFinding kept = finding;
  kept.kind = keep(finding.kind);
  kept.memory = keep(finding.memory);
  kept.kernel = keep(finding.kernel);
  kept.library = keep(finding.library);
  kept.count = 1;
  findings.push_back(kept);
}

}  // namespace cudasim

int cudasim_begin_findings() {
  std::lock_guard<std::mutex> lock(mutex);
  by_place.clear();
  return int(findings.size());
}

int cudasim_finding_count() {
  std::lock_guard<std::mutex> lock(mutex);
  return int(findings.size());
}

int cudasim_finding_get(int index, CudasimFinding* finding) {
  std::lock_guard<std::mutex> lock(mutex);
  if (index < 0 || size_t(index) >= findings.size()) return 1;
  *finding = findings[size_t(index)];
  return 0;
}
