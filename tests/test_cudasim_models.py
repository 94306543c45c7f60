"""Whole models on the emulated device, and the commands that show what ran."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from typer.testing import CliRunner

from tvmfuse import cudasim
from tvmfuse.cli_cudasim import app
from tvmfuse.cudasim.encoder import encoder_module
from tvmfuse.cudasim.model_run import build_fused, run_model
from tvmfuse.target import resolve_target

MODEL = """
from tvm.script import ir as I, relax as R

@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((32, 64), "float32")) -> R.Tensor((32, 64), "float32"):
        with R.dataflow():
            y = R.nn.softmax(R.exp(x))
            R.output(y)
        return y
"""


def encoder_error(layers: int, width: int, heads: int, tokens: int) -> float:
    """Largest difference between the fused encoder on the device and TVM's LLVM build."""
    module = encoder_module(layers, width, heads, tokens)
    x = np.random.default_rng(1).standard_normal((1, tokens, width)).astype("float32")
    host = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    expected = host["main"](tvm.runtime.tensor(x)).numpy()
    with cudasim.device() as session:
        executable = build_fused(module, resolve_target("sm_80"))
        machine = relax.VirtualMachine(executable, tvm.cuda(0))
        result = machine["main"](tvm.runtime.tensor(x, tvm.cuda(0))).numpy()
    assert session.launches
    return float(np.abs(result - expected).max())


def test_small_encoder_is_right() -> None:
    assert encoder_error(layers=1, width=64, heads=2, tokens=32) < 1e-4


@pytest.mark.slow
def test_encoder_of_twelve_layers_runs_within_a_minute() -> None:
    start = time.perf_counter()
    assert encoder_error(layers=12, width=384, heads=12, tokens=128) < 1e-4
    assert time.perf_counter() - start < 60  # with TVM's compilers and the LLVM reference


def test_symbolic_model_is_refused() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 4), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    with pytest.raises(cudasim.CudasimError, match="symbolic dimension"):
        run_model(builder.get(), resolve_target("sm_80"))


def test_trace_command_prints_what_ran(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    done = CliRunner().invoke(app, ["trace", str(model), "--json", "--check"])
    assert done.exit_code == 0, done.output
    trace = json.loads(done.output)
    assert trace["findings"] == []
    assert len(trace["launches"]) == sum(kernel["launches"] for kernel in trace["kernels"])
    read = trace["kernels"][0]["global_read"]
    assert read["transactions"] >= read["ideal"] > 0
    assert trace["kernels"][0]["scalar_operations"]["special"] >= 32 * 64
