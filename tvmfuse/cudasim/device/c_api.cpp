#include "c_api.h"

#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "launch.h"
#include "memory.h"
#include "settings.h"

using namespace cudasim;

namespace {

struct Function {
  Module* module;
  std::string name;
};

struct LoadedModule {
  Module code;
  std::deque<Function> functions;
  explicit LoadedModule(const char* source) : code(source) {}
};

std::mutex mutex;
std::deque<CudasimLaunch> launches;
std::set<std::string> kernel_names;  // keeps the names of `launches`
thread_local std::string last_error;
CudasimResolver resolver;

const char* keep(const std::string& name) { return kernel_names.insert(name).first->c_str(); }

const Kernel* kernel_of(Function& function, const Variant*& variant) {
  variant = function.module->variant(settings().instrumented(), last_error);
  if (!variant) return nullptr;
  const Kernel* kernel = variant->find(function.name);
  if (!kernel) last_error = "the module has no kernel " + function.name;
  return kernel;
}

}  // namespace

void cudasim_configure(int check, int trace, int lockstep, double time_budget, int workers) {
  settings().check = check;
  settings().trace = trace;
  settings().lockstep = lockstep;
  settings().time_budget = time_budget;
  settings().workers = workers;
}

void cudasim_set_builder(Builder builder) { set_builder(builder); }
void cudasim_set_resolver(CudasimResolver function) { resolver = function; }

void cudasim_rebuild_modules() { rebuild_modules(); }

void* cudasim_module(const char* source) { return new LoadedModule(source); }

void* cudasim_function(void* module, const char* name) {
  auto* loaded = static_cast<LoadedModule*>(module);
  Function function{&loaded->code, name};
  const Variant* variant;
  if (!kernel_of(function, variant)) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  loaded->functions.push_back(function);
  return &loaded->functions.back();
}

// The compiled library stays mapped: a fiber may still be parked in it.
void cudasim_unload(void* module) { delete static_cast<LoadedModule*>(module); }

int cudasim_launch(void* handle, const unsigned* grid, const unsigned* block,
                   size_t dynamic_shared, void** arguments) {
  auto& function = *static_cast<Function*>(handle);
  Launch launch{};
  launch.kernel = kernel_of(function, launch.code);
  if (!launch.kernel) return 1;
  launch.grid = {grid[0], grid[1], grid[2]};
  launch.block = {block[0], block[1], block[2]};
  launch.dynamic_shared = dynamic_shared;
  launch.arguments = arguments;
  {
    std::lock_guard<std::mutex> lock(mutex);
    launches.push_back({keep(function.name),
                        {grid[0], grid[1], grid[2]},
                        {block[0], block[1], block[2]},
                        dynamic_shared});
  }
  last_error = run(launch);
  if (launch.error_offset() && resolver)
    if (int line = resolver(launch.code->path.c_str(), launch.error_offset()))
      last_error += ", line " + std::to_string(line) + " of the printed CUDA";
  return !last_error.empty();
}

const char* cudasim_error() { return last_error.c_str(); }
void cudasim_set_error(const char* message) { last_error = message; }

int cudasim_launch_count() {
  std::lock_guard<std::mutex> lock(mutex);
  return int(launches.size());
}

int cudasim_launch_get(int index, CudasimLaunch* launch) {
  std::lock_guard<std::mutex> lock(mutex);
  if (index < 0 || size_t(index) >= launches.size()) return 1;
  *launch = launches[size_t(index)];
  return 0;
}

void* cudasim_allocate(size_t bytes) { return allocate(bytes); }
int cudasim_release(void* address) { return release(address) ? 0 : 1; }

int cudasim_owns(const void* address, size_t bytes) {
  if (bytes == 0 || find_allocation(address, bytes)) return 1;
  const Allocation* allocation = allocation_before(address);
  auto* byte = static_cast<const char*>(address);
  bool near = allocation && byte < allocation->mapping + allocation->mapping_size;
  return near ? 0 : -1;
}

void cudasim_mark_initialised(void* address, size_t bytes) { mark_initialised(address, bytes); }

