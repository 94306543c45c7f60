// The defects that the checker saw, each place once with a count.
#pragma once
#include <cstdint>

extern "C" {

// One end of a conflict: where in the code, and which CUDA thread.
struct CudasimSite {
  uint64_t offset;  // of the instruction after the access, in the kernel's library; 0: see line
  int line;         // of the printed source, where it is known without the library
  unsigned block[3], thread[3];
};

struct CudasimFinding {
  const char* kind;     // "write-write race", "out-of-bounds read", ...
  const char* memory;   // "shared", "global" or ""
  const char* kernel;
  const char* library;  // file of the kernel's code
  CudasimSite site;
  int has_other;
  CudasimSite other;
  unsigned size;   // bytes of the access
  uint64_t count;  // how often
};

// How many there are; from now on a place that was reported before is a new finding.
int cudasim_begin_findings();
int cudasim_finding_count();
int cudasim_finding_get(int index, CudasimFinding* finding);
}

namespace cudasim {

// Stores the finding, or counts it if the same kind was seen at the same place.
void add_finding(const CudasimFinding& finding);

}  // namespace cudasim
