// The CUDA keywords that need no run-time support, as the host compiler can read them.
//
// `__shared__` is absent on purpose: source.py rewrites every shared declaration, so one that it
// missed is a compile error instead of memory that all blocks silently share.
//
// Included last: the standard headers use some of these names.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __grid_constant__
// Dropped: with it the host compiler may move a load over a barrier, because a call cannot be
// seen to write through the other pointer.
#define __restrict__

#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 900
#endif
