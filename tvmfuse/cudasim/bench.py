"""How fast the emulated device runs: figures for ``tvmfuse bench cudasim``.

They bound what a test may ask of it; they say nothing about a GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse.cudasim.device import device
from tvmfuse.cudasim.encoder import encoder_flops, encoder_module
from tvmfuse.cudasim.model_run import build_fused
from tvmfuse.cudasim.programs import TARGET, operator_module


@dataclass(frozen=True)
class Figure:
    """One program: seconds of one run, unchecked and checked, with the kernels already built.

    ``build_seconds`` is the time of TVM and the host compiler together on a cold cache, or of TVM
    alone on a warm one. ``flops`` is the arithmetic of the program, 0 if it is not counted.
    """

    program: str
    build_seconds: float
    seconds: float
    checked_seconds: float
    flops: float

    @property
    def gflops(self) -> float:
        """Arithmetic per second, unchecked."""
        return self.flops / self.seconds / 1e9

    @property
    def checking_factor(self) -> float:
        """Checked over unchecked time."""
        return self.checked_seconds / self.seconds


def run(matmul_size: int = 1024, checked_matmul_size: int = 256) -> list[Figure]:
    """Figures of a large matmul, unchecked, and of small programs, unchecked and checked."""
    from tvm.relax import op

    n, m = matmul_size, checked_matmul_size
    return [
        measure(f"matmul {n}", op.matmul, [(n, n), (n, n)], 2.0 * n**3, checked=False),
        measure(f"matmul {m}", op.matmul, [(m, m), (m, m)], 2.0 * m**3),
        measure("relu", op.nn.relu, [(512, 512)]),
        measure("softmax", op.nn.softmax, [(256, 512)]),
        measure("sum", lambda a: op.sum(a, axis=[1]), [(256, 1024)]),
        measure("transpose", op.permute_dims, [(512, 512)]),
        measure_encoder(),
    ]


def measure_encoder() -> Figure:
    """12 layers, 384 wide, 128 tokens, through tvmfuse's pipeline, unchecked."""
    from tvmfuse.target import resolve_target

    start = time.perf_counter()
    with device() as session:
        executable = build_fused(encoder_module(), resolve_target("sm_80"))
        build_seconds = time.perf_counter() - start
        seconds = _best_time(executable, [(1, 128, 384)], repeat=1)
        if not session.launches:
            raise RuntimeError("the encoder launched no kernel")
    return Figure("encoder", build_seconds, seconds, float("nan"), encoder_flops())


def measure(
    program: str,
    operator: Callable[..., Any],
    shapes: list[tuple[int, ...]],
    flops: float = 0.0,
    checked: bool = True,
) -> Figure:
    """Compile one operator with TVM's default CUDA pipeline and time it in both modes."""
    import tvm

    start = time.perf_counter()
    with device() as session:
        executable = tvm.compile(
            operator_module(operator, tuple(shapes)), target=tvm.target.Target(TARGET)
        )
        build_seconds = time.perf_counter() - start
        seconds = _best_time(executable, shapes)
        if not session.launches:
            raise RuntimeError(f"{program} launched no kernel")
    checked_seconds = float("nan")
    if checked:
        with device(check=True):
            checked_seconds = _best_time(executable, shapes)
    return Figure(program, build_seconds, seconds, checked_seconds, flops)


def table(figures: list[Figure]) -> str:
    """One line per program, and the median factor of checking."""
    lines = [f"{'program':<14} {'build s':>8} {'run s':>8} {'GFLOP/s':>8} {'checked':>8}"]
    for f in figures:
        rate = f"{f.gflops:>8.2f}" if f.flops else f"{'-':>8}"
        factor = f"{f.checking_factor:>7.1f}x" if f.checked_seconds > 0 else f"{'-':>8}"
        lines.append(f"{f.program:<14} {f.build_seconds:>8.2f} {f.seconds:>8.3f} {rate} {factor}")
    factors = [f.checking_factor for f in figures if f.checked_seconds > 0]
    return "\n".join([*lines, f"median checking factor {statistics.median(factors):.1f}x"])


def _best_time(executable: Any, shapes: list[tuple[int, ...]], repeat: int = 3) -> float:
    import tvm
    from tvm import relax

    gpu = tvm.cuda(0)
    machine = relax.VirtualMachine(executable, gpu, memory_cfg="naive")
    rng = np.random.default_rng(0)
    inputs = [tvm.runtime.tensor(rng.standard_normal(s).astype("float32"), gpu) for s in shapes]
    machine["main"](*inputs)  # builds the kernels
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        machine["main"](*inputs)
        times.append(time.perf_counter() - start)
    return min(times)
