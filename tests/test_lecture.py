"""The lecture's example from the graph to the checked kernel, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from lecture import INPUTS, OUTPUTS, ROWS, lecture_module
from tvm import relax, tirx

import tvmfuse
from tvmfuse.job import kernel_sources
from tvmfuse.passes.fuse import fuse
from tvmfuse.passes.prepare import prepare
from tvmfuse.patterns import DEFAULT
from tvmfuse.report.graph_table import graph_rows
from tvmfuse.target import resolve_target


def arrays() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = ((ROWS, INPUTS), (INPUTS, OUTPUTS), (OUTPUTS,))
    return [generator.standard_normal(shape).astype("float32") for shape in shapes]


def reference(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return np.maximum(x.astype("float64") @ weight.astype("float64") + bias, 0.0)


def test_the_node_table_has_number_operator_inputs_outputs():
    rows = graph_rows(tvmfuse.build_graph(lecture_module()))
    assert rows == [
        (1, "matmul", "x, W", "h: 64x96 float32"),
        (2, "add", "h, b", "a: 64x96 float32"),
        (3, "nn.relu", "a", "y: 64x96 float32"),
    ]


def test_one_match_covers_all_three_operators():
    options = tvmfuse.Options()
    fused = fuse(prepare(lecture_module(), options), resolve_target("llvm"), DEFAULT, options)
    (match,) = fused.plans["main"].matches
    assert (match.pattern, match.anchor, match.nodes) == ("matmul", 0, (0, 1, 2))
    functions = [f for f in fused.lowered.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(functions) == 1
    assert fused.lowered.get_global_var("fused_matmul_add_relu") is not None


def test_it_runs_and_its_check_passes():
    executable, report = tvmfuse.compile(lecture_module(), "llvm")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    got = machine["main"](*[tvm.runtime.tensor(a) for a in arrays()]).numpy()
    np.testing.assert_allclose(got, reference(*arrays()), rtol=1e-5, atol=1e-5)
    (check,) = report.verification
    assert check.ok and check.symbol == "fused_matmul_add_relu"
    assert check.max_rel < check.tolerance
    assert report.after.kernels == 1 and report.after.intermediate_bytes == 0
    assert [(e.producer, e.consumer, e.code) for e in report.edges] == [
        ("h", "a", "FUSED"),
        ("a", "y", "FUSED"),
    ]


def test_a_symbolic_batch_is_one_kernel_too():
    executable, report = tvmfuse.compile(
        lecture_module(rows=None), "llvm", options=tvmfuse.Options(verify=False)
    )
    assert report.after.kernels == 1 and report.after.bytes_moved is None
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for rows in (1, 7, 64):
        x, weight, bias = arrays()
        got = machine["main"](*[tvm.runtime.tensor(a) for a in (x[:rows], weight, bias)])
        np.testing.assert_allclose(
            got.numpy(), reference(x[:rows], weight, bias), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("target", ["nvidia/nvidia-h100", "sm_80"])
def test_it_is_one_cuda_kernel(target: str):
    executable, report = tvmfuse.compile(lecture_module(), target)
    assert report.after.kernels == 1
    sources = kernel_sources(executable)
    assert list(sources) == ["fused_matmul_add_relu_kernel"]
    assert sources["fused_matmul_add_relu_kernel"].count("{") > 1


def test_the_cuda_kernel_passes_its_check_on_the_emulated_device():
    _, report = tvmfuse.compile(
        lecture_module(), "sm_80", options=tvmfuse.Options(device="emulated")
    )
    (check,) = report.verification
    assert check.ok is True and check.max_rel < check.tolerance


def test_what_is_compiled_in_a_session_runs_on_the_emulated_device():
    from tvmfuse import cudasim

    with cudasim.device(check=True) as session:
        executable, _ = tvmfuse.compile(
            lecture_module(), "sm_80", options=tvmfuse.Options(verify=False)
        )
        device = tvm.cuda(0)
        machine = relax.VirtualMachine(executable, device)
        got = machine["main"](*[tvm.runtime.tensor(a, device) for a in arrays()]).numpy()
    np.testing.assert_allclose(got, reference(*arrays()), rtol=1e-5, atol=1e-5)
    assert session.findings == ()
    assert [launch.kernel for launch in session.launches] == ["fused_matmul_add_relu_kernel"]
