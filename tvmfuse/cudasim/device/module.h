// A loaded CUDA module: its source, and up to two compiled forms of it.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernel_table.h"

namespace cudasim {

// The shared library made of a module's source, plain or instrumented for the checker.
struct Variant {
  std::string path;
  void* handle = nullptr;
  const Kernel* kernels = nullptr;
  // Where the library is mapped: the constants that a kernel may read.
  std::vector<std::pair<uintptr_t, uintptr_t>> segments;
  uintptr_t base = 0;

  const Kernel* find(const std::string& name) const;
  bool contains(const void* address) const;
};

// Compiles source and writes the library's path, or the error, to `text`; returns 0 on success.
using Builder = int (*)(const char* source, int instrumented, char* text, int capacity);
void set_builder(Builder builder);
// Ask the builder again for every module: it may now answer otherwise.
void rebuild_modules();

class Module {
 public:
  explicit Module(std::string source) : source_(std::move(source)) {}
  // Built on first use. On failure returns null and sets `error`.
  const Variant* variant(bool instrumented, std::string& error);

 private:
  std::string source_;
  Variant variants_[2];
  int generation_ = 0;
};

}  // namespace cudasim
