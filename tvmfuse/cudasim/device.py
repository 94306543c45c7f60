"""The context manager that gives ``tvm.cuda(0)`` on a machine without a GPU."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any, Literal

from tvmfuse.cudasim.compiler import build_kernels
from tvmfuse.cudasim.errors import CudasimError
from tvmfuse.cudasim.findings import Finding, read_findings, source_line
from tvmfuse.cudasim.stand_ins import load_stand_ins
from tvmfuse.cudasim.trace import Counters, Launch, read_counters, read_launches

WarpModel = Literal["independent", "lockstep"]

_BUILDER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_int
)
_RESOLVER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_ulonglong)
_COMPILE_HOOK = "tvm_callback_cuda_compile"


class Session:
    """What ran on the device between entering and leaving ``device()``."""

    def __init__(self, core: ctypes.CDLL) -> None:
        self._core = core
        self._first_launch: int = core.cudasim_launch_count()
        self._first_finding: int = core.cudasim_begin_findings()
        core.cudasim_begin_trace()
        self._ended: tuple[tuple[Launch, ...], tuple[Finding, ...]] | None = None
        self._counters: tuple[Counters, ...] = ()

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Every launch so far, in order."""
        return self._ended[0] if self._ended else read_launches(self._core, self._first_launch)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the checker reported so far; empty without ``check=True``."""
        return self._ended[1] if self._ended else read_findings(self._core, self._first_finding)

    @property
    def counters(self) -> tuple[Counters, ...]:
        """Memory traffic by kernel; empty without ``trace=True``."""
        return self._counters if self._ended else read_counters(self._core, self.launches)

    def substitute(self, change: Callable[[str], str] | None) -> None:
        """From now on run kernels of ``change(source)``; None: of the source itself.

        For mutation tests. Modules that are loaded already change too.
        """
        _loaded().substitute(change)

    def _end(self) -> None:
        self._counters = self.counters
        self._ended = (self.launches, self.findings)


# Settings of the sessions that are open, outermost first; a nested one wins while it lasts.
_Settings = tuple[bool, bool, bool, float, int]


class _Device:
    """The loaded libraries: one per process, because a library cannot be unloaded."""

    def __init__(self, core: ctypes.CDLL) -> None:
        self.core = core
        self.open: list[_Settings] = []
        self.change: Callable[[str], str] | None = None
        self.builder = _BUILDER(_build)
        core.cudasim_set_builder(self.builder)
        self.resolver = _RESOLVER(_line_of)
        core.cudasim_set_resolver(self.resolver)
        core.cudasim_error.restype = ctypes.c_char_p

    def configure(self, settings: _Settings) -> None:
        check, trace, lockstep, budget, workers = settings
        self.core.cudasim_configure(
            int(check), int(trace), int(lockstep), ctypes.c_double(budget), workers
        )

    def substitute(self, change: Callable[[str], str] | None) -> None:
        if change is not self.change:
            self.change = change
            self.core.cudasim_rebuild_modules()


_device: _Device | None = None


def _loaded() -> _Device:
    if _device is None:
        raise CudasimError("the emulated device is not loaded: enter tvmfuse.cudasim.device()")
    return _device


def is_loaded() -> bool:
    """Whether ``tvm.cuda(0)`` is the emulated device in this process, in a session or not."""
    return _device is not None


def is_open() -> bool:
    """True within ``device()``: CUDA modules compiled now are for the emulated device."""
    return _device is not None and bool(_device.open)


@contextlib.contextmanager
def device(
    check: bool = False,
    warp_model: WarpModel = "independent",
    *,
    trace: bool = False,
    time_budget: float = 120.0,
    workers: int = 0,
    force: bool = False,
) -> Iterator[Session]:
    """Make ``tvm.cuda(0)`` an emulated device; kernels compile and run on the CPU.

    Args:
        check: report races, accesses out of bounds, uninitialised reads, misaligned accesses and
            divergent barriers in ``session.findings``. Slower, on one core.
        warp_model: ``"independent"``: the lanes of a warp run in any order between collectives,
            as CUDA allows since Volta. ``"lockstep"``: they do each shared access together, as
            converged warps behave.
        trace: count memory transactions and bank conflicts per kernel.
        time_budget: seconds after which one launch is ended with an error.
        workers: threads that run blocks; 0: one per core.
        force: hide a real CUDA driver.

    Raises:
        CudasimError: no C++ compiler; a real driver is there or loaded; unknown ``warp_model``.
    """
    global _device
    if warp_model not in ("independent", "lockstep"):
        raise CudasimError(f"warp_model {warp_model!r}: must be 'independent' or 'lockstep'")
    if time_budget <= 0:
        raise CudasimError(f"time_budget {time_budget}: must be positive")
    if _device is None:
        _device = _Device(load_stand_ins(force))
        _install_compile_hook()
    settings = (check, trace, warp_model == "lockstep", time_budget, workers)
    _device.open.append(settings)
    _device.configure(settings)
    session = Session(_device.core)
    try:
        yield session
    finally:
        session._end()
        _device.substitute(None)
        _device.open.pop()
        _device.configure(_device.open[-1] if _device.open else (False, False, False, 120.0, 0))


def _install_compile_hook() -> None:
    """Let TVM's CUDA code generator keep the source as the module's image.

    For good: with a CUDA runtime loaded TVM always calls the hook, and the one that it replaces
    needs NVIDIA's compiler. Outside a session it keeps the source and builds nothing, which is
    what TVM does by itself where no CUDA runtime is loaded.
    """
    import tvm.support.nvcc  # noqa: F401  registers the hook that is replaced
    import tvm_ffi

    def keep_source(code: str) -> bytes:
        if settings := _loaded().open:
            build_kernels(str(code), any(settings[-1][:3]))  # errors appear at compile time
        return str(code).encode() + b"\0"

    tvm_ffi.register_global_func(_COMPILE_HOOK, keep_source, override=True)


def _line_of(library: bytes, offset: int) -> int:
    """The core library asks where a kernel failed."""
    return source_line(library.decode(), offset)


def _build(source: bytes, instrumented: int, text: Any, capacity: int) -> int:
    """The core library asks for a module's shared library: its path, or the error, into text."""
    try:
        if source.startswith(b"\x7fELF"):
            raise CudasimError(
                "the module holds machine code of a GPU, not CUDA source: compile it within "
                "tvmfuse.cudasim.device(), and without nvcc as TVM's compile hook"
            )
        text_of_module = source.decode()
        if change := _loaded().change:
            text_of_module = change(text_of_module)
        answer, code = str(build_kernels(text_of_module, bool(instrumented))), 0
    except (CudasimError, OSError, ValueError) as error:
        answer, code = str(error), 1
    data = answer.encode()[: capacity - 1] + b"\0"
    ctypes.memmove(text, data, len(data))
    return code
