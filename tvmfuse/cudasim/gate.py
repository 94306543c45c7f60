"""The static gate: compile the printed source with nvcc and read what a GPU would need for it.

No GPU is involved: nvcc and ptxas come with the CUDA toolkit, or with the pip wheels
``nvidia-cuda-nvcc``, ``nvidia-cuda-crt``, ``nvidia-nvvm`` and ``nvidia-cuda-runtime``.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tvmfuse.cudasim.errors import CudasimError

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")

_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\((\d+)[^)]*\)\s*(\w+)\s*\(")


@dataclass(frozen=True)
class Multiprocessor:
    """Per-SM limits of an architecture (CUDA C++ Programming Guide, compute capabilities)."""

    threads: int
    blocks: int
    shared: int
    registers: int = 65536
    warp_granularity: int = 256  # registers are given out per warp in this step
    reserved_shared: int = 1024  # per block, by the system


_MULTIPROCESSORS = {
    "sm_80": Multiprocessor(threads=2048, blocks=32, shared=167936),
    "sm_90a": Multiprocessor(threads=2048, blocks=32, shared=233472),
    "sm_100a": Multiprocessor(threads=2048, blocks=32, shared=233472),
}


@dataclass(frozen=True)
class KernelResources:
    """What ptxas reports for one kernel, and the occupancy that follows.

    ``occupancy``: resident warps over the most that a multiprocessor holds, for blocks of
    ``threads`` threads; dynamic shared memory is counted if the caller gave it.
    """

    kernel: str
    architecture: str
    registers: int
    static_shared: int
    stack: int
    spill_stores: int
    spill_loads: int
    threads: int
    occupancy: float


def find_nvcc() -> Path | None:
    """nvcc of the toolkit or of the pip wheels; None if neither is installed."""
    if installed := shutil.which("nvcc"):
        return Path(installed)
    if usual := shutil.which("nvcc", path="/usr/local/cuda/bin"):
        return Path(usual)
    if spec := importlib.util.find_spec("nvidia"):
        for root in spec.submodule_search_locations or ():
            for path in sorted(Path(root).glob("*/bin/nvcc")):
                return path
    return None


def check(
    source: str,
    architectures: tuple[str, ...] = ARCHITECTURES,
    dynamic_shared: dict[str, int] | None = None,
) -> tuple[KernelResources, ...] | None:
    """Resources of every kernel on every architecture; None without a toolkit.

    Args:
        source: CUDA that TVM printed.
        architectures: keys of the table of multiprocessors above.
        dynamic_shared: bytes of dynamic shared memory by kernel, as a trace shows them.

    Raises:
        CudasimError: nvcc refuses the source; unknown architecture.
    """
    for architecture in architectures:
        if architecture not in _MULTIPROCESSORS:
            raise CudasimError(
                f"architecture {architecture!r}: must be one of {', '.join(_MULTIPROCESSORS)}"
            )
    nvcc = find_nvcc()
    if nvcc is None:
        return None
    bounds = {name: int(threads) for threads, name in _LAUNCH_BOUNDS.findall(source)}
    dynamic = dynamic_shared or {}
    return tuple(
        _resources(fields, architecture, bounds, dynamic)
        for architecture in architectures
        for fields in _ptxas(nvcc, source, architecture)
    )


def occupancy(multiprocessor: Multiprocessor, threads: int, registers: int, shared: int) -> float:
    """Resident warps of blocks of this size over the most possible; 0 if no block fits."""
    warps = -(-threads // 32)
    step = multiprocessor.warp_granularity
    per_warp = -(-max(registers, 1) * 32 // step) * step
    by_registers = multiprocessor.registers // per_warp // warps
    by_shared = multiprocessor.shared // (shared + multiprocessor.reserved_shared)
    most_warps = multiprocessor.threads // 32
    blocks = min(multiprocessor.blocks, most_warps // warps, by_registers, by_shared)
    return blocks * warps / most_warps


def resources_table(resources: tuple[KernelResources, ...]) -> str:
    """One line per kernel and architecture."""
    lines = [
        f"{'kernel':<40} {'arch':<8} {'registers':>9} {'shared':>7} {'stack':>6} {'spills':>7} "
        f"{'threads':>7} {'occupancy':>9}"
    ]
    lines += [
        f"{r.kernel:<40} {r.architecture:<8} {r.registers:>9} {r.static_shared:>7} {r.stack:>6} "
        f"{r.spill_stores + r.spill_loads:>7} {r.threads:>7} {r.occupancy:>8.0%}"
        for r in resources
    ]
    return "\n".join(lines)


_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def _ptxas(nvcc: Path, source: str, architecture: str) -> list[dict[str, int | str]]:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "kernel.cu"
        file.write_text(source, encoding="utf-8")
        command = (str(nvcc), "-w", f"-arch={architecture}", "-cubin", "--use_fast_math")
        result = subprocess.run(
            (*command, "--ptxas-options=-v", "-o", str(Path(scratch) / "kernel.cubin"), str(file)),
            capture_output=True,
            text=True,
            check=False,
        )
    output = result.stdout + result.stderr
    if result.returncode:
        errors = [line for line in output.splitlines() if "error" in line]
        detail = errors[0] if errors else output.strip()[-300:]
        raise CudasimError(f"nvcc refuses the source for {architecture}: {detail}")
    kernels: list[dict[str, int | str]] = []
    for line in output.splitlines():
        if match := _ENTRY.search(line):
            kernels.append({"kernel": match[1]})
        elif not kernels:
            continue
        elif match := _SPILLS.search(line):
            stack, stores, loads = (int(group) for group in match.groups())
            kernels[-1] |= {"stack": stack, "stores": stores, "loads": loads}
        elif match := _REGISTERS.search(line):
            shared = _SHARED.search(line)
            kernels[-1] |= {
                "registers": int(match[1]),
                "shared": int(shared[1]) if shared else 0,
            }
    return kernels


def _resources(
    fields: dict[str, int | str],
    architecture: str,
    bounds: dict[str, int],
    dynamic: dict[str, int],
) -> KernelResources:
    kernel = str(fields["kernel"])
    registers, shared = int(fields.get("registers", 0)), int(fields.get("shared", 0))
    threads = bounds.get(kernel, 1024)
    total = shared + dynamic.get(kernel, 0)
    return KernelResources(
        kernel=kernel,
        architecture=architecture,
        registers=registers,
        static_shared=shared,
        stack=int(fields.get("stack", 0)),
        spill_stores=int(fields.get("stores", 0)),
        spill_loads=int(fields.get("loads", 0)),
        threads=threads,
        occupancy=occupancy(_MULTIPROCESSORS[architecture], threads, registers, total),
    )
