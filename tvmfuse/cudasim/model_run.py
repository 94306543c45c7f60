"""Compile a whole model for the emulated device and run it there once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmfuse.cudasim.device import Session, device
from tvmfuse.cudasim.errors import CudasimError
from tvmfuse.cudasim.programs import cuda_source

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ModelRun:
    """The session that ran the model, its printed CUDA source, and the first output."""

    session: Session
    source: str
    output: np.ndarray


def build_fused(module: Any, target: Any) -> Any:
    """The executable of a Relax module through tvmfuse's pipeline. Within a session."""
    import tvm

    from tvmfuse.compiler import pipeline

    return tvm.compile(module, target=target, relax_pipeline=pipeline(target))


def run_model(
    module: Any, target: Any, *, check: bool = False, trace: bool = True, fused: bool = True
) -> ModelRun:
    """Run main of a Relax module on random inputs.

    Args:
        module: static shapes only; bind symbols before.
        target: a resolved CUDA target.
        check, trace: as of ``device``.
        fused: tvmfuse's pipeline, or TVM's default one.

    Raises:
        CudasimError: a dimension is symbolic, or nothing ran on the device.
    """
    import tvm
    from tvm import relax

    from tvmfuse.sample_inputs import sample

    arrays = sample(module["main"], {}, "random", 0)
    if arrays is None:
        raise CudasimError("the model has a symbolic dimension: bind it with --dim or --input")
    with device(check=check, trace=trace, time_budget=3600.0) as session:
        build = build_fused if fused else tvm.compile
        executable = build(module, target=target)
        gpu = tvm.cuda(0)
        machine = relax.VirtualMachine(executable, gpu, memory_cfg="naive")
        result = machine["main"](*(tvm.runtime.tensor(array, gpu) for array in arrays))
        while not hasattr(result, "numpy"):  # of several outputs the first
            result = result[0]
        output = result.numpy()
    if not session.launches:
        raise CudasimError("the model launched no kernel on the device")
    return ModelRun(session, cuda_source(executable.mod), output)
