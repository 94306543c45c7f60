// Stand-in for libcuda.so.1: the functions of the driver API that TVM's CUDA runtime calls.
//
// Declared here from NVIDIA's public documentation, so that no CUDA header is needed.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "c_api.h"

namespace {

using Result = int;
constexpr Result kSuccess = 0, kInvalidValue = 1, kNotFound = 500, kLaunchFailed = 719,
                 kNotSupported = 801;
constexpr int kMaxDynamicSharedAttribute = 8;
constexpr int kClusterDimensionAttribute = 4;
constexpr unsigned kMaxDynamicShared = 232448, kDefaultDynamicShared = 49152;

struct LaunchAttribute {
  int id;
  char padding[4];
  uint32_t value[16];
};

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3], block[3], dynamic_shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

struct Function {
  void* handle;
  unsigned dynamic_limit = kDefaultDynamicShared;
};

Result fail(Result code, const char* message) {
  cudasim_set_error(message);
  return code;
}

thread_local std::string text;

}  // namespace

extern "C" {

Result cuDeviceGetName(char* name, int length, int) {
  snprintf(name, size_t(length), "tvmfuse emulated CUDA device");
  return kSuccess;
}

Result cuGetErrorName(Result code, const char** name) {
  text = "CUDA_ERROR_" + std::to_string(code) + ": " + cudasim_error();
  *name = text.c_str();
  return kSuccess;
}

Result cuGetErrorString(Result, const char** message) {
  text = cudasim_error();
  *message = text.c_str();
  return kSuccess;
}

// The image is the CUDA source: the build happens at the first use of a kernel, in the form
// (plain or instrumented) that the session then asks for.
Result cuModuleLoadData(void** module, const void* image) {
  *module = cudasim_module(static_cast<const char*>(image));
  return kSuccess;
}

Result cuModuleUnload(void* module) {
  cudasim_unload(module);
  return kSuccess;
}

Result cuModuleGetFunction(void** function, void* module, const char* name) {
  void* handle = cudasim_function(module, name);
  if (!handle) return kNotFound;
  *function = new Function{handle};
  return kSuccess;
}

Result cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute != kMaxDynamicSharedAttribute) return kSuccess;
  if (value < 0 || unsigned(value) > kMaxDynamicShared)
    return fail(kInvalidValue, "more than 232448 bytes of dynamic shared memory");
  static_cast<Function*>(function)->dynamic_limit = unsigned(value);
  return kSuccess;
}

Result cuLaunchKernelEx(const LaunchConfig* config, void* handle, void** arguments, void**) {
  auto* function = static_cast<Function*>(handle);
  for (unsigned i = 0; i < config->attribute_count; ++i)
    if (config->attributes[i].id == kClusterDimensionAttribute &&
        (config->attributes[i].value[0] > 1 || config->attributes[i].value[1] > 1 ||
         config->attributes[i].value[2] > 1))
      return fail(kNotSupported, "thread block clusters are not emulated");
  if (config->dynamic_shared > function->dynamic_limit)
    return fail(kInvalidValue, "dynamic shared memory above the limit set for the kernel");
  for (int i = 0; i < 3; ++i)
    if (!config->grid[i] || !config->block[i])
      return fail(kInvalidValue, "a grid or block dimension is 0");
  if (config->grid[0] > 0x7fffffffu || config->grid[1] > 65535 || config->grid[2] > 65535 ||
      config->block[0] > 1024 || config->block[1] > 1024 || config->block[2] > 64)
    return fail(kInvalidValue, "a grid or block dimension is above the hardware's limit");
  return cudasim_launch(function->handle, config->grid, config->block, config->dynamic_shared,
                        arguments)
             ? kLaunchFailed
             : kSuccess;
}

Result cuTensorMapEncodeTiled() {
  return fail(kNotSupported, "TMA tensor maps are not emulated");
}
}
