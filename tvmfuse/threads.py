"""The threads that compiled CPU kernels run on."""

from __future__ import annotations

import os

import tvm_ffi

# TVM's name for "these CPUs, every thread on any of them" (threading_backend.h).
_SHARE_ALL = -3


def usable_cores() -> list[int]:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def use_all_cores() -> int:
    """Let TVM's thread pool use every core of this process; returns how many.

    By itself TVM takes half of them on x86, because it counts every core as two hyperthreads,
    which is wrong on most virtual machines.  ``TVM_NUM_THREADS`` does the same for a program
    that only loads the library.
    """
    cores = usable_cores()
    configure = tvm_ffi.get_global_func("runtime.config_threadpool")
    configure(_SHARE_ALL, len(cores), [str(core) for core in cores])
    return len(cores)
