// Attributes of the device's own functions.
#pragma once

// Code of the device itself, inside an instrumented kernel: the checker does not see its accesses.
#if defined(__clang__)
#define CUDASIM_RUNTIME __attribute__((no_sanitize("thread", "coverage")))
#else
#define CUDASIM_RUNTIME __attribute__((no_sanitize("thread"), no_sanitize_coverage))
#endif
// Code of the device whose accesses belong to the line of the kernel that calls it.
#define CUDASIM_INLINE __attribute__((always_inline)) inline
#define CUDASIM_NOINLINE __attribute__((noinline))
