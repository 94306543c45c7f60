"""What people would use instead: each peer as a function of no arguments that runs the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..baseline import build_baseline
from ..target import resolve_target
from ..threads import usable_cores
from ..versions import installed
from .models import Case

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


def run_tvm(executable: relax.VMExecutable, case: Case) -> Run:
    """A call of ``main`` on tensors that are made once."""
    function = relax.VirtualMachine(executable, tvm.cpu())["main"]
    tensors = [tvm.runtime.tensor(array) for array in case.inputs.values()]

    def run() -> np.ndarray:
        result = function(*tensors)
        return (result if hasattr(result, "numpy") else result[0]).numpy()

    return run


def stock_tvm(mod: tvm.IRModule, case: Case) -> dict[str, Run]:
    """TVM without tuning, four ways: default and best passes, plain llvm and with features.

    ``best`` adds what TVM has but leaves out by default: batch norms folded or decomposed,
    common subexpressions shared.
    """
    target = resolve_target("llvm")
    peers = {}
    for name, best in (("TVM default", False), ("TVM best passes", True)):
        baseline = build_baseline(mod, target, run=True, best=best)
        for variant, executable in baseline.executables.items():
            peers[f"{name}, {variant}"] = run_tvm(executable, case)
    return peers


def onnxruntime(case: Case) -> dict[str, Run]:
    """ONNX Runtime, where it is installed and the case is an ONNX file."""
    if installed("onnxruntime") is None or case.onnx_file is None:
        return {}
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = len(usable_cores())
    session = ort.InferenceSession(str(case.onnx_file), options, providers=["CPUExecutionProvider"])
    inputs = dict(case.inputs)
    return {"ONNX Runtime": lambda: session.run(None, inputs)[0]}


def exported_onnxruntime(case: Case, module: Any, folder: str) -> dict[str, Run]:
    """ONNX Runtime on a PyTorch module exported to ONNX, where the exporter is installed."""
    if installed("onnxruntime") is None or installed("onnxscript") is None:
        return {}
    import onnxruntime as ort
    import torch

    path = os.path.join(folder, "model.onnx")
    arguments = tuple(torch.from_numpy(array) for array in case.inputs.values())
    torch.onnx.export(module, arguments, path, input_names=list(case.inputs), dynamo=True)
    options = ort.SessionOptions()
    options.intra_op_num_threads = len(usable_cores())
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = dict(case.inputs)
    return {"ONNX Runtime": lambda: session.run(None, inputs)[0]}


def pytorch(case: Case) -> dict[str, Run]:
    """PyTorch eager and torch.compile, where it is installed and the case is a PyTorch module."""
    if installed("torch") is None or case.torch_module is None:
        return {}
    import torch

    torch.set_num_threads(len(usable_cores()))
    module = case.torch_module()
    arguments = tuple(torch.from_numpy(array) for array in case.inputs.values())
    compiled = torch.compile(module)

    def run(function: Any) -> Run:
        def call() -> np.ndarray:
            with torch.inference_mode():
                return function(*arguments).numpy()

        return call

    return {"PyTorch eager": run(module), "torch.compile": run(compiled)}
