"""Examine the machine: what is missing, what it costs, how to close the gap."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass

from .cudasim.gate import find_nvcc
from .threads import usable_cores
from .versions import FFI, TVM, installed


@dataclass(frozen=True)
class Finding:
    """One check; ``level`` is ``ok``, ``note`` (works, but something is lost) or ``error``."""

    check: str
    found: str
    level: str
    advice: str = ""


def examine() -> list[Finding]:
    """All checks, those that matter most first."""
    return [
        _python(),
        _pinned("apache-tvm", TVM),
        _pinned("apache-tvm-ffi", FFI),
        _compiler(),
        _import_time(),
        _cpu(),
        _cores(),
        _cuda_toolkit(),
        _gpu(),
        _openblas(),
        *[_optional(package, what) for package, what in OPTIONAL.items()],
    ]


OPTIONAL = {
    "onnx": "reading ONNX files: pip install 'tvmfuse[onnx]'",
    "onnxruntime": "checks and benchmarks against ONNX Runtime: pip install 'tvmfuse[onnx]'",
    "torch": "reading .pt2 files and benchmarks against PyTorch: pip install 'tvmfuse[torch]'",
    "xgboost": "tuning with a learned cost model: pip install xgboost",
    "tornado": "tuning over TVM's RPC: pip install 'tvmfuse[rpc]'",
}


def _python() -> Finding:
    version = platform.python_version()
    good = (3, 10) <= sys.version_info[:2] <= (3, 13)
    advice = "" if good else "TVM has wheels for Python 3.10 to 3.13; make a .venv with one of them"
    return Finding("Python", version, "ok" if good else "error", advice)


def _pinned(package: str, wanted: str) -> Finding:
    found = installed(package)
    if found == wanted:
        return Finding(package, found, "ok")
    return Finding(
        package,
        found or "missing",
        "error",
        f"everything; other versions crash: pip install '{package}=={wanted}'",
    )


def _compiler() -> Finding:
    for name in ("g++", "clang++", "c++"):
        path = shutil.which(name)
        if path:
            return Finding("C++ compiler", path, "ok")
    advice = "writing model.so and the emulated CUDA device; apt install g++ (or clang)"
    return Finding("C++ compiler", "none", "error", advice)


def _import_time() -> Finding:
    code = "import time; t = time.perf_counter(); import tvm; print(time.perf_counter() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["it failed"]
        return Finding("import tvm", last[0], "error", "everything; reinstall apache-tvm")
    seconds = float(done.stdout.split()[-1])
    slow = seconds > 10
    advice = (
        "each tuning worker pays it once; unload the machine or use fewer workers" if slow else ""
    )
    return Finding("import tvm", f"{seconds:.1f} s", "note" if slow else "ok", advice)


def _cpu() -> Finding:
    from tvm.target import codegen

    from .target import resolve_target

    target = resolve_target("llvm")
    with target:
        bits = codegen.llvm_get_vector_width(target)
    name = target.attrs["mcpu"]
    good = bits >= 256
    advice = "" if good else "kernels run on 128-bit vectors; name the CPU with mcpu if it has more"
    return Finding(
        "CPU of --target llvm", f"{name}, {bits}-bit vectors", "ok" if good else "note", advice
    )


def _cores() -> Finding:
    import tvm_ffi

    usable = len(usable_cores())
    threads = int(tvm_ffi.get_global_func("runtime.NumThreads")())
    found = f"{usable}, TVM's own choice is {threads} threads"
    if threads == usable:
        return Finding("cores", found, "ok")
    advice = (
        f"programs that load the library run on {threads}; set TVM_NUM_THREADS={usable} for them "
        "(tvmfuse itself uses all cores)"
    )
    return Finding("cores", found, "note", advice)


def _cuda_toolkit() -> Finding:
    path = find_nvcc()
    if path:
        return Finding("nvcc", str(path), "ok")
    advice = "no cubins and register counts of CUDA kernels; pip install nvidia-cuda-nvcc"
    return Finding("nvcc", "none", "note", advice)


def _gpu() -> Finding:
    import tvm

    if tvm.cuda(0).exist:
        return Finding("CUDA device", tvm.cuda(0).device_name, "ok")
    advice = "no latency of CUDA kernels; their results can be checked with --device emulated"
    return Finding("CUDA device", "none", "note", advice)


def _openblas() -> Finding:
    core = os.environ.get("OPENBLAS_CORETYPE")
    if core:
        advice = "NumPy runs another CPU's code; unset it before benchmarks"
        return Finding("OPENBLAS_CORETYPE", core, "note", advice)
    return Finding("OPENBLAS_CORETYPE", "not set", "ok")


def _optional(package: str, what: str) -> Finding:
    found = installed(package)
    return Finding(package, found or "missing", "ok" if found else "note", "" if found else what)
