// What the driver libraries and Python call of the core library.
#pragma once
#include <cstddef>

#include "module.h"

extern "C" {

struct CudasimLaunch {
  const char* kernel;
  unsigned grid[3], block[3];
  unsigned long long dynamic_shared;
};

void cudasim_configure(int check, int trace, int lockstep, double time_budget, int workers);
void cudasim_set_builder(cudasim::Builder builder);
// Line of the printed source at an offset of a library; 0: unknown.
using CudasimResolver = int (*)(const char* library, unsigned long long offset);
void cudasim_set_resolver(CudasimResolver resolver);
void cudasim_rebuild_modules();

void* cudasim_module(const char* source);
// A handle of the kernel, or null; cudasim_error then says why.
void* cudasim_function(void* module, const char* name);
void cudasim_unload(void* module);
int cudasim_launch(void* function, const unsigned* grid, const unsigned* block,
                   size_t dynamic_shared, void** arguments);
const char* cudasim_error();
void cudasim_set_error(const char* message);

int cudasim_launch_count();
int cudasim_launch_get(int index, CudasimLaunch* launch);

void* cudasim_allocate(size_t bytes);
int cudasim_release(void* address);
// 1: all these bytes belong to one allocation. 0: part of them do. -1: not device memory.
int cudasim_owns(const void* address, size_t bytes);
void cudasim_mark_initialised(void* address, size_t bytes);
}
