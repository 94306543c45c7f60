"""What people would use instead, each as a function that runs the model; imported on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..threads import usable_cores
from ..versions import installed
from .models import Case

if TYPE_CHECKING:
    import tvm

Run = Callable[[], np.ndarray]


def relax_module(case: Case) -> tvm.IRModule:
    """The case as a Relax module, through the frontend that a user would take."""
    from ..frontends import load

    if case.onnx_file is not None:
        return load(case.onnx_file, inputs=case.shapes)
    import torch

    if case.torch_module is None:
        raise ValueError(f"case {case.name!r} has neither a file nor a module")
    arguments = tuple(torch.from_numpy(array) for array in case.inputs.values())
    with torch.no_grad():
        return load(torch.export.export(case.torch_module(), arguments))


def _tvm(case: Case, library: Path) -> Run:
    """``main`` of a library that TVM exported, on tensors that are made once."""
    import tvm
    from tvm import relax

    from ..threads import use_all_cores

    use_all_cores()
    module = tvm.runtime.load_module(str(library))
    function = relax.VirtualMachine(module, tvm.cpu())["main"]
    tensors = [tvm.runtime.tensor(array) for array in case.inputs.values()]

    def run() -> np.ndarray:
        result = function(*tensors)
        return (result if hasattr(result, "numpy") else result[0]).numpy()

    return run


def _onnxruntime(case: Case, _library: Path) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = len(usable_cores())
    session = ort.InferenceSession(str(case.onnx_file), options, providers=["CPUExecutionProvider"])
    inputs = dict(case.inputs)
    return lambda: session.run(None, inputs)[0]


def _pytorch(case: Case, compiled: bool) -> Run:
    import torch

    torch.set_num_threads(len(usable_cores()))
    module = _module(case)()
    function = torch.compile(module) if compiled else module
    arguments = tuple(torch.from_numpy(array) for array in case.inputs.values())

    def run() -> np.ndarray:
        with torch.inference_mode():
            return function(*arguments).numpy()

    return run


def _module(case: Case) -> Callable[[], Any]:
    if case.torch_module is None:
        raise ValueError(f"case {case.name!r} has no PyTorch module")
    return case.torch_module


KINDS: dict[str, Callable[[Case, Path], Run]] = {
    "tvm": _tvm,
    "onnxruntime": _onnxruntime,
    "pytorch": lambda case, _: _pytorch(case, compiled=False),
    "torch.compile": lambda case, _: _pytorch(case, compiled=True),
}


def installed_peers(case: Case) -> dict[str, str]:
    """Names and kinds of the peers that can run ``case`` and are installed."""
    peers = {}
    if case.onnx_file is not None and installed("onnxruntime"):
        peers["ONNX Runtime"] = "onnxruntime"
    if case.torch_module is not None and installed("torch"):
        peers |= {"PyTorch eager": "pytorch", "torch.compile": "torch.compile"}
    return peers
