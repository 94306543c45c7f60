"""Checks that one scheduled function really is one CUDA kernel within the block's limits.

TVM compiles a PrimFunc without thread bindings to host code, and one with several top-level
nests to several kernels, both without a word.
"""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .. import analysis
from . import nest
from .machine import STATIC_SHARED_BYTES, Machine

# 255 registers of four bytes are the most that one thread can have on any architecture.
LOCAL_BYTES = 1020

_KERNEL = re.compile(
    r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(?P<name>\w+)\s*\([^)]*\)\s*\{"
)
_BOUNDS = re.compile(r"__launch_bounds__\s*\(\s*(\d+)")


def one_kernel(func_or_source: tirx.PrimFunc | str, machine: Machine | None = None) -> str | None:
    """Why a scheduled function, or printed CUDA source, is not one kernel; ``None`` if it is.

    Without ``machine`` the limits are 48 KiB of shared memory and 1024 threads.
    """
    shared_limit = STATIC_SHARED_BYTES if machine is None else machine.shared_limit
    max_threads = 1024 if machine is None else machine.max_threads
    if isinstance(func_or_source, str):
        return _one_kernel_source(func_or_source, max_threads)
    return _one_kernel_function(func_or_source, shared_limit, max_threads)


def _one_kernel_source(source: str, max_threads: int) -> str | None:
    kernels = [match["name"] for match in _KERNEL.finditer(source)]
    if len(kernels) != 1:
        return f"the source defines {len(kernels)} kernels; expected one"
    threads = max((int(match[1]) for match in _BOUNDS.finditer(source)), default=1)
    if threads > max_threads:
        return f"the kernel has {threads} threads per block; the limit is {max_threads}"
    return None


def _one_kernel_function(func: tirx.PrimFunc, shared_limit: int, max_threads: int) -> str | None:
    if not isinstance(func.body, s_tir.SBlockRealize):
        return "the function has no root block"
    body = func.body.block.body
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if len(statements) != 1:
        return f"the root block has {len(statements)} nests; each would be a kernel of its own"
    outer = statements[0]
    if not isinstance(outer, tirx.For) or not _is_bound(outer, "blockIdx"):
        return "the outermost loop is not bound to blockIdx"
    threads = 1
    for tag, extent in _thread_extents(outer).items():
        if tag.startswith("threadIdx"):
            if extent is None:
                return f"the extent of {tag} is not static"
            threads *= extent
    if threads > max_threads:
        return f"the kernel has {threads} threads per block; the limit is {max_threads}"
    try:
        sizes = allocated_bytes(func)
    except (ValueError, tvm.error.InternalError) as error:
        return f"TVM cannot lower the nest: {str(error).strip().splitlines()[-1]}"
    if sizes is None:
        return "the size of a shared or local buffer is not static"
    shared, local = sizes
    if local > LOCAL_BYTES:
        return (
            f"one thread needs {local} bytes of local arrays; the registers hold {LOCAL_BYTES}, "
            "the rest would go through memory"
        )
    if shared > shared_limit:
        return f"the kernel needs {shared} bytes of shared memory; the limit is {shared_limit}"
    return None


def _is_bound(loop: tirx.For, prefix: str) -> bool:
    binding = loop.thread_binding
    return binding is not None and str(binding.thread_tag).startswith(prefix)


def _thread_extents(statement: tirx.Stmt) -> dict[str, int | None]:
    extents: dict[str, int | None] = {}

    def visit(loop: tirx.For) -> None:
        if loop.thread_binding is not None:
            extents[str(loop.thread_binding.thread_tag)] = analysis.static(loop.extent)

    tvm_ffi.structural_walk(statement, (tirx.For, visit))
    return extents


def shared_bytes(func: tirx.PrimFunc) -> int | None:
    """Bytes of shared memory of a scheduled function, or ``None``: see ``allocated_bytes``."""
    sizes = allocated_bytes(func)
    return None if sizes is None else sizes[0]


def allocated_bytes(func: tirx.PrimFunc) -> tuple[int, int] | None:
    """Bytes of shared memory of a block, and of local arrays of a thread.

    They are measured after TVM has cut each buffer to the region that is used.  Buffers whose
    lifetimes do not meet may be merged later, so these are upper bounds.  ``None`` if a size is
    symbolic.
    """
    mod = tvm.IRModule({"main": func})
    compact = tvm.ir.transform.Sequential(
        [
            s_tir.transform.LowerCrossThreadReduction(),
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.LiftThreadBinding(),
            s_tir.transform.CompactBufferAllocation(),
        ]
    )
    shared: list[int | None] = []
    local: list[int | None] = []

    def visit(block: s_tir.SBlock) -> None:
        for buffer in block.alloc_buffers:
            scope = str(buffer.scope())
            sizes = shared if scope.startswith("shared") else local if scope == "local" else None
            if sizes is not None:
                count = analysis.element_count(buffer)
                sizes.append(None if count is None else count * nest.bytes_of(str(buffer.dtype)))

    tvm_ffi.structural_walk(compact(mod)["main"].body, (s_tir.SBlock, visit))
    if None in shared or None in local:
        return None
    return sum(size or 0 for size in shared), sum(size or 0 for size in local)
