"""Schedule one function for CUDA, look at its source, compile it with nvcc, run it emulated."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target
from tvmfuse.schedules.base import Scheduled, ScheduleRule
from tvmfuse.schedules.cuda.machine import Machine
from tvmfuse.schedules.cuda.verify import one_kernel

from tvmfuse import cudasim

H100 = Target({"tag": "nvidia/nvidia-h100", "max_shared_memory_per_block": 232448})
A100 = Target({"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024})


def schedule_with(rule: ScheduleRule, func: tirx.PrimFunc, target: Target = H100) -> Scheduled:
    """Schedule ``func``, and check what holds for every rule: it applies, leaves its input as it
    was, does the same twice, and makes one kernel within the block's limits."""
    before = func.script()
    assert rule.check(func, target) is None
    first = rule.schedule(func, target, tunable=False).mod["main"]
    second = rule.schedule(func, target, tunable=False).mod["main"]
    assert func.script() == before, "the rule changed its input"
    assert tvm_ffi.structural_equal(first, second), "the rule is not deterministic"
    assert one_kernel(first, Machine.of(target)) is None
    return Scheduled(first.with_attr("tirx.is_scheduled", True), rule.name)


def compiled(scheduled: Scheduled, target: Target = H100) -> tuple[tvm.runtime.Executable, str]:
    """The executable and its CUDA source, which must define exactly one kernel.

    Within a session of the emulated device, as without one TVM would look for a CUDA compiler.
    """
    named = scheduled.func.with_attr("global_symbol", "main")
    with cudasim.device():
        executable = tvm.compile(tvm.IRModule({"main": named}), target=target)
    devices = [module for module in executable.mod.imports if module.kind == "cuda"]
    assert len(devices) == 1, "the function became host code"
    source = devices[0].inspect_source()
    assert one_kernel(source) is None
    return executable, source


def run(
    scheduled: Scheduled, inputs: Sequence[np.ndarray], target: Target = H100
) -> tuple[list[np.ndarray], cudasim.Session]:
    """The outputs on the emulated device with its checker on; the session for its findings.

    A symbolic dimension of an output takes its size from the input that has the same symbol.
    """
    parameters = [p for p in scheduled.func.params if hasattr(p, "shape")]
    sizes: dict[str, int] = {}
    for parameter, array in zip(parameters, inputs, strict=False):
        for extent, size in zip(parameter.shape, array.shape, strict=True):
            if isinstance(extent, tirx.Var):
                sizes[extent.name] = size
    with cudasim.device(check=True) as session:
        executable, _ = compiled(scheduled, target)
        device = tvm.cuda(0)
        arguments = [tvm.runtime.tensor(array, device) for array in inputs]
        results = []
        for parameter in parameters[len(inputs) :]:
            shape = [
                sizes[extent.name] if isinstance(extent, tirx.Var) else int(extent)
                for extent in parameter.shape
            ]
            results.append(tvm.runtime.empty(shape, str(parameter.dtype), device))
        executable.mod["main"](*arguments, *results)
        outputs = [result.numpy() for result in results]
    return outputs, session


def random_inputs(func: tirx.PrimFunc, count: int, seed: int = 3) -> list[np.ndarray]:
    """Seeded normal values for the first ``count`` parameters, all of static shape."""
    generator = np.random.default_rng(seed)
    return [
        generator.standard_normal([int(size) for size in parameter.shape]).astype(
            str(parameter.dtype)
        )
        for parameter in func.params[:count]
    ]


def cubin(source: str, folder: Path, arch: str = "sm_90a") -> None:
    """Compile CUDA source with nvcc; skip where there is none."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("no nvcc on PATH or in /usr/local/cuda/bin")
    text = folder / "kernel.cu"
    text.write_text(source)
    command = [nvcc, "-w", f"-arch={arch}", "-cubin", "-o", str(folder / "kernel.cubin"), str(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
