"""Build the device's libraries and the kernels with the system's C++ compiler.

Everything goes to the user's cache, in names made of the content (sources, flags, compiler), and
gets there by a rename: two processes that build the same thing do not disturb each other.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tvmfuse.cudasim.errors import CudasimError
from tvmfuse.cudasim.source import FILE_NAME, kernel_names, rewrite

DEVICE = Path(__file__).parent / "device"

# Headers that printed kernels include. device/cudasim.h holds what they would declare.
_CUDA_HEADERS = (
    "cuda.h",
    "cuda_bf16.h",
    "cuda_fp16.h",
    "cuda_fp4.h",
    "cuda_fp6.h",
    "cuda_fp8.h",
    "cuda_runtime.h",
    "math_constants.h",
    "mma.h",
    "sm_61_intrinsics.h",
)
_LIBRARY_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-w", "-U_FORTIFY_SOURCE", "-pthread")
_KERNEL_FLAGS = (
    "-xc++",  # the file has the name of CUDA source, which line tables and findings give
    "-std=c++17",
    "-fPIC",
    "-w",
    "-U_FORTIFY_SOURCE",
    "-fno-strict-aliasing",  # printed kernels read floats as float4 through pointer casts
    # What the language leaves undefined must crash or hang here as it would on a GPU, not vanish.
    "-fno-delete-null-pointer-checks",
    "-fno-finite-loops",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-threadsafe-statics",
    "-fvisibility=hidden",  # kernels of the same name live in several modules
    "-fstack-clash-protection",  # a stack overflow hits the guard page, however large the frame
    "-g1",  # line tables: findings and crashes name lines of the printed source
)
_PLAIN_FLAGS = ("-O2",)
# The hooks of thread sanitizer tell every access to checker.cpp; its library is not linked.
# Those of its coverage count basic blocks, from which flops.py counts operations.
_INSTRUMENTED_FLAGS = (
    "-O1",
    "-fsanitize=thread",
    "-fsanitize-coverage=trace-pc",
    "-DCUDASIM_INSTRUMENTED=1",
)
_CORE = "libcudasim.so"
_SOURCES = "source"  # folder beside the libraries
_DRIVER = "libcuda.so.1"
_RUNTIME = "libcudart.so.13"
LIBRARIES = (_CORE, _DRIVER, _RUNTIME)


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/tvmfuse/cudasim``, by default under ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "tvmfuse" / "cudasim"


@functools.cache
def find_compiler() -> str:
    """Path of the C++ compiler.

    Raises:
        CudasimError: there is none; says what to install.
    """
    for name in ("g++", "c++", "clang++"):
        if path := shutil.which(name):
            return path
    raise CudasimError(
        "the emulated CUDA device needs a C++ compiler and finds none: install g++ "
        "(Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)"
    )


def build_device() -> Path:
    """Directory with the device's three libraries; built at the first call on a machine."""
    directory = cache_directory() / f"device-{_device_key()}"
    if not directory.exists():
        _publish(_build_libraries, directory)
    return directory


def build_kernels(source: str, instrumented: bool) -> Path:
    """Shared library with the kernels of a CUDA ``source``.

    Raises:
        NotEmulatedError: the source uses something that the device does not model.
        CudasimError: the compiler refuses the rewritten source; names the kernels.
    """
    flags = _KERNEL_FLAGS + (_INSTRUMENTED_FLAGS if instrumented else _PLAIN_FLAGS)
    key = _hash(_device_key(), *flags, source)
    library = cache_directory() / "kernels" / key[:2] / f"{key}.so"
    if not library.exists():
        code = rewrite(source)
        headers = _header_directory()

        def build(target: Path) -> None:
            with tempfile.TemporaryDirectory() as scratch:
                file = Path(scratch) / FILE_NAME
                file.write_text(code, encoding="utf-8")
                built = Path(scratch) / "kernel.o"
                sources = build_device() / _SOURCES
                include = ("-I", str(headers), "-I", str(sources), "-include", "cudasim.h")
                _compile((*flags, *include, "-c", str(file), "-o", str(built)), source)
                # Linked apart, without -fsanitize=thread, which would link its library.
                _compile(("-shared", str(built), "-o", str(target)), source)

        _publish(build, library)
    return library


def _build_libraries(directory: Path) -> None:
    sources = directory / _SOURCES
    sources.mkdir(parents=True)
    for name, text in _device_files().items():
        (sources / name).write_text(text, encoding="utf-8")
    stand_ins = ("driver.cpp", "cudart.cpp")
    core = [str(p) for p in sorted(sources.glob("*.cpp")) if p.name not in stand_ins]
    link = ("-L", str(directory), "-lcudasim", "-Wl,-rpath,$ORIGIN")
    versions = f"-Wl,--version-script={sources / 'runtime.ldscript'}"
    _compile((*_LIBRARY_FLAGS, *core, "-ldl", "-o", str(directory / _CORE)))
    for file, library, extra in (
        ("driver.cpp", _DRIVER, ()),
        ("cudart.cpp", _RUNTIME, (versions,)),
    ):
        name = f"-Wl,-soname,{library}"
        target = str(directory / library)
        _compile((*_LIBRARY_FLAGS, str(sources / file), name, *extra, *link, "-o", target))


def _header_directory() -> Path:
    """Directory with an empty file for each CUDA header that a printed kernel includes."""
    directory = cache_directory() / f"headers-{_hash(*_CUDA_HEADERS)}"
    if not directory.exists():

        def write(target: Path) -> None:
            target.mkdir()
            for name in _CUDA_HEADERS:
                (target / name).write_text("// see device/cudasim.h\n", encoding="utf-8")

        _publish(write, directory)
    return directory


def _compile(arguments: tuple[str, ...], source: str = "") -> None:
    command = (find_compiler(), *arguments)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return
    errors = [line for line in result.stderr.splitlines() if re.search(r"\berror\b", line)]
    detail = errors[0] if errors else result.stderr.strip()[-500:]
    what = f"kernels {', '.join(kernel_names(source))}" if source else "the device's libraries"
    raise CudasimError(f"{Path(command[0]).name} cannot build {what}: {detail}")


def _publish(build: Callable[[Path], None], target: Path) -> None:
    """Build under a temporary name beside ``target``, then rename; a lost race is as good."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        build(made)
        try:
            if target.exists():
                return  # it may be mapped already
            made.rename(target)
        except OSError:
            if not target.exists():
                raise


@functools.cache
def _device_key() -> str:
    """Hash of everything that the libraries and the kernels are made of, but the kernel."""
    version = subprocess.run(
        (find_compiler(), "--version"), capture_output=True, text=True, check=True
    ).stdout
    return _hash(version, _SOURCES, *_LIBRARY_FLAGS, *_device_files().values())


@functools.cache
def _device_files() -> dict[str, str]:
    """Names and texts of the device's sources, read once.

    Kernels are compiled against the copy in the cache that the loaded libraries were built from:
    after an update of the package, a running process must not mix old libraries and new headers.
    """
    files = sorted(path for path in DEVICE.iterdir() if path.is_file())
    return {path.name: path.read_text(encoding="utf-8") for path in files}


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
