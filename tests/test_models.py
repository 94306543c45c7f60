"""Two trained models, whole: what is one kernel, and whose numbers they give."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

import tvmfuse
from tvmfuse.bench.models import detector, encoder, sentence_encoder
from tvmfuse.bench.peers import relax_module

OPTIONS = tvmfuse.Options(verify=False)  # the kernels' own checks have a test of their own

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install 'tvmfuse[onnx]'")


@pytest.fixture(scope="module")
def fused_detector():
    case = detector()
    return case, *tvmfuse.compile(relax_module(case), "llvm", options=OPTIONS)


@pytest.fixture(scope="module")
def fused_encoder():
    pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    case = encoder()
    return case, *tvmfuse.compile(relax_module(case), "llvm", options=OPTIONS)


def outputs(executable, case) -> np.ndarray:
    function = relax.VirtualMachine(executable, tvm.cpu())["main"]
    result = function(*[tvm.runtime.tensor(a) for a in case.inputs.values()])
    return (result if hasattr(result, "numpy") else result[0]).numpy()


def test_every_detector_kernel_is_one_function_with_a_schedule(fused_detector):
    _, _, report = fused_detector
    assert all(group.kernels == 1 for group in report.groups)
    assert report.after.kernels == sum(group.count for group in report.groups) <= 60


def test_every_convolution_is_in_one_kernel_and_no_batch_norm_is_left(fused_detector):
    _, _, report = fused_detector
    operators = [op for group in report.groups for op in group.operators * group.count]
    # 62 convolutions, and the two transposed ones, which became 1x1 convolutions
    assert operators.count("relax.nn.conv2d") == 64
    assert not {op for op in operators if "batch_norm" in op or "transpose" in op}


def test_the_detector_gives_the_numbers_of_onnxruntime(fused_detector):
    import onnxruntime

    case, executable, _ = fused_detector
    session = onnxruntime.InferenceSession(str(case.onnx_file), providers=["CPUExecutionProvider"])
    want = session.run(None, dict(case.inputs))[0]
    assert 0.02 < (want > 0.3).mean() < 0.5  # the picture has text
    np.testing.assert_allclose(outputs(executable, case), want, rtol=1e-4, atol=1e-4)


def test_an_encoder_layer_is_at_most_eight_kernels(fused_encoder):
    _, _, report = fused_encoder
    counts = {(group.symbol, group.pattern): group.count for group in report.groups}
    layers = 6
    per_layer = sum(count for count in counts.values() if count >= layers - 1) / layers
    assert per_layer <= 8
    assert report.pattern_counts()["attention"] == layers
    assert report.pattern_counts()["matmul"] == 4 * layers


def test_the_encoder_gives_the_numbers_of_pytorch(fused_encoder):
    import torch

    case, executable, _ = fused_encoder
    module = sentence_encoder()
    with torch.no_grad():
        want = module(*[torch.from_numpy(a) for a in case.inputs.values()]).numpy()
    got = outputs(executable, case)
    error = np.abs(got - want).max() / np.sqrt(np.mean(np.square(want)))
    assert error < 1e-4


def test_every_edge_has_a_code_and_a_reason(fused_encoder, fused_detector):
    for _, _, report in (fused_encoder, fused_detector):
        assert all(edge.code and edge.reason for edge in report.edges)
        assert len(report.edges) > 200
