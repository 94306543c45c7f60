"""Count the kernel launches of a scheduled function: a group is fused only if it is one."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx


def kernel_count(func: tirx.PrimFunc, target_kind: str) -> int:
    """Launches that one call of ``func`` makes.

    On the CPU a PrimFunc is one function call.  On CUDA every outermost loop bound to threads is
    a launch of its own; a function without one would run on the host (TVM says nothing then), so
    it counts as no kernel at all.
    """
    if target_kind != "cuda":
        return 1
    launches = 0

    def count(loop: tirx.For) -> tvm_ffi.WalkResult:
        nonlocal launches
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            launches += 1
            return tvm_ffi.WalkResult.SKIP
        return tvm_ffi.WalkResult.ADVANCE

    tvm_ffi.structural_walk(func.body, ((tirx.For, count),), order="pre")
    return launches
