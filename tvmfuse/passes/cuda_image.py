"""What TVM embeds of a CUDA kernel: a cubin where nvcc is at hand, else the source.

TVM asks a Python hook for the image, but only once a CUDA runtime is loaded: a real one, or the
emulated device's.  Its own hook wants NVRTC and the architecture of a GPU that is present, so
without a GPU it raises; this one compiles for the architecture of the target.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm
import tvm_ffi
from tvm.target import Target

from ..cudasim.gate import find_nvcc
from ..errors import TargetError

_HOOK = "tvm_callback_cuda_compile"


@contextmanager
def cuda_images(target: Target) -> Iterator[None]:
    """While it lasts, CUDA modules are compiled by nvcc for ``target``, GPU or not."""
    emulated = sys.modules.get("tvmfuse.cudasim.device")
    for_emulation = emulated is not None and emulated.is_open()
    if target.kind.name != "cuda" or for_emulation or (tvm.cuda(0).exist and find_nvcc() is None):
        yield
        return
    importlib.import_module("tvm.support.nvcc")  # registers the hook that is replaced

    arch, nvcc = str(target.attrs["arch"]), find_nvcc()

    def image(source: str) -> bytes:
        return str(source).encode() + b"\0" if nvcc is None else cubin(str(source), arch, nvcc)

    previous = tvm_ffi.get_global_func(_HOOK)
    tvm_ffi.register_global_func(_HOOK, image, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_HOOK, previous, override=True)


def cubin(source: str, arch: str, nvcc: Path) -> bytes:
    """The compiled kernels of ``source``; TargetError with nvcc's first error line."""
    with tempfile.TemporaryDirectory(prefix="tvmfuse-nvcc-") as folder:
        path = Path(folder) / "kernels.cu"
        path.write_text(source)
        result = path.with_suffix(".cubin")
        command = [str(nvcc), "-w", f"-arch={arch}", "-cubin", "-o", str(result), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            raise TargetError(
                f"nvcc refuses the kernels for {arch}: {(lines or ['no message'])[0]}"
            )
        return result.read_bytes()
