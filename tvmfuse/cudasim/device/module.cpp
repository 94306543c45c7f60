#include "module.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>

namespace cudasim {

static Builder builder;
static int generation;
void set_builder(Builder function) { builder = function; }
void rebuild_modules() { ++generation; }

const Kernel* Variant::find(const std::string& name) const {
  for (const Kernel* kernel = kernels; kernel->name; ++kernel)
    if (name == kernel->name) return kernel;
  return nullptr;
}

bool Variant::contains(const void* address) const {
  auto value = reinterpret_cast<uintptr_t>(address);
  for (const auto& [begin, end] : segments)
    if (value >= begin && value < end) return true;
  return false;
}

static int add_segments(dl_phdr_info* info, size_t, void* context) {
  auto* variant = static_cast<Variant*>(context);
  if (variant->base != info->dlpi_addr) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    variant->segments.push_back({begin, begin + header.p_memsz});
  }
  return 1;
}

const Variant* Module::variant(bool instrumented, std::string& error) {
  if (generation_ != generation) {
    generation_ = generation;
    for (Variant& old : variants_) old = Variant{};
  }
  Variant& variant = variants_[instrumented];
  if (variant.kernels) return &variant;
  if (!builder) {
    error = "the emulated device has no compiler: enter tvmfuse.cudasim.device() first";
    return nullptr;
  }
  std::vector<char> text(1 << 16);
  if (builder(source_.c_str(), instrumented, text.data(), int(text.size())) != 0) {
    error = text.data();
    return nullptr;
  }
  variant.path = text.data();
  variant.handle = dlopen(variant.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!variant.handle) {
    error = dlerror();
    return nullptr;
  }
  // By address, not by name: a file that another process replaced is mapped a second time.
  const link_map* map = nullptr;
  if (dlinfo(variant.handle, RTLD_DI_LINKMAP, &map) != 0) {
    error = dlerror();
    return nullptr;
  }
  variant.base = map->l_addr;
  dl_iterate_phdr(add_segments, &variant);
  variant.kernels = static_cast<const Kernel*>(dlsym(variant.handle, "cudasim_kernels"));
  if (!variant.kernels) error = variant.path + " has no kernel table";
  return variant.kernels ? &variant : nullptr;
}

}  // namespace cudasim
