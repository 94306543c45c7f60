"""Put the emulated driver in the place of the real one, before TVM's CUDA runtime looks for it.

``libtvm_runtime_cuda.so`` needs ``libcuda.so.1`` and ``libcudart.so.13``. The dynamic linker takes
libraries that are already loaded under these names, so the stand-ins only have to come first.
``import tvm`` then loads the CUDA runtime by itself; when TVM was imported earlier it has given
up, and the runtime is loaded here.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from pathlib import Path

from tvmfuse.cudasim.compiler import LIBRARIES, build_device
from tvmfuse.cudasim.errors import CudasimError

_CUDA_LIBRARIES = ("libcuda.so.1", "libcudart.so.13")


def load_stand_ins(force: bool) -> ctypes.CDLL:
    """The device's core library, with the stand-ins loaded and TVM's CUDA runtime on them.

    Raises:
        CudasimError: a real CUDA driver is there (and ``force`` is false) or already loaded.
    """
    directory = build_device()
    for path in _mapped_libraries():
        if path.name in _CUDA_LIBRARIES and path.parent != directory:
            raise CudasimError(
                f"{path} is already loaded in this process, so the emulated device cannot take "
                "its place; use it in a process that has not loaded CUDA"
            )
    if not force and (real := ctypes.util.find_library("cuda")):
        raise CudasimError(
            f"this machine has a CUDA driver ({real}), which the emulated device would hide; "
            "pass force=True to hide it in this process"
        )
    core, *_ = (ctypes.CDLL(str(directory / name), ctypes.RTLD_GLOBAL) for name in LIBRARIES)
    _load_tvm_cuda_runtime()
    return core


def _load_tvm_cuda_runtime() -> None:
    import tvm
    import tvm_ffi
    from tvm import libinfo
    from tvm_ffi.libinfo import load_lib_ctypes

    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is None:
        load_lib_ctypes(
            "tvm", "tvm_runtime_cuda", "RTLD_GLOBAL", extra_lib_paths=libinfo.package_lib_paths()
        )
    if not tvm.cuda(0).exist:
        raise CudasimError("TVM's CUDA runtime does not accept the emulated driver")


def _mapped_libraries() -> set[Path]:
    """Shared libraries in this process."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return set()
    lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    return {Path(line[line.index("/") :]) for line in lines if "/" in line}
