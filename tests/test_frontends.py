"""Models from files: what loads, and one clear sentence for each thing that does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvmfuse.errors import ModelError
from tvmfuse.frontends import load
from tvmfuse.frontends.script import bind

SCRIPT = """
from tvm.script import ir as I, relax as R

@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 8), "float32"):
        with R.dataflow():
            y = R.nn.relu(x)
            R.output(y)
        return y
"""


def onnx_model(nodes: list[onnx.NodeProto], shape: list, opset: int = 17) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def shape_of(mod) -> list[str]:
    return [str(int(d)) if hasattr(d, "value") else str(d) for d in mod["main"].params[0].ty.shape]


def test_a_python_file_defines_the_only_module(tmp_path: Path):
    path = tmp_path / "model.py"
    path.write_text(SCRIPT)
    assert shape_of(load(path)) == ["n", "8"]
    assert shape_of(load(path, dims={"n": 4})) == ["4", "8"]
    assert shape_of(load(path, inputs={"x": [5, 8]})) == ["5", "8"]


def test_a_python_file_without_a_module(tmp_path: Path):
    path = tmp_path / "model.py"
    path.write_text("x = 1\n")
    with pytest.raises(ModelError, match=r"defines 0 IRModules \(none\); expected exactly one"):
        load(path)


def test_a_python_file_that_raises(tmp_path: Path):
    path = tmp_path / "model.py"
    path.write_text("raise ValueError('no such layer')\n")
    with pytest.raises(ModelError, match=r"model\.py raises ValueError: no such layer"):
        load(path)


def test_unknown_dimensions_and_inputs_are_named(tmp_path: Path):
    path = tmp_path / "model.py"
    path.write_text(SCRIPT)
    with pytest.raises(ModelError, match="no symbolic dimension is called q; this model has n"):
        load(path, dims={"q": 4})
    with pytest.raises(ModelError, match="no input is called 'z'; this model has x"):
        bind(load(path), {}, {"z": [1]})
    with pytest.raises(ModelError, match="input 'x' is fixed to 8 where 9 was given"):
        load(path, inputs={"x": [4, 9]})


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize("content", [b"", b"\x00\x01 no model"])
def test_a_broken_file_is_one_sentence(tmp_path: Path, suffix: str, content: bytes):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="truncated") as caught:
        load(path)
    assert "\n" not in str(caught.value) and path.name in str(caught.value)


def test_a_missing_file_and_an_unknown_kind(tmp_path: Path):
    with pytest.raises(ModelError, match=r"does not exist; give a \.onnx, \.pt2 or \.py file"):
        load(tmp_path / "none.onnx")
    (tmp_path / "model.tar").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"unknown kind '\.tar'"):
        load(tmp_path / "model.tar")


def test_every_unknown_operator_is_named_at_once(tmp_path: Path):
    nodes = [
        helper.make_node("FrobnicateA", ["x"], ["a"], name="first"),
        helper.make_node("FrobnicateB", ["a"], ["b"], name="second"),
        helper.make_node("FrobnicateA", ["b"], ["y"], name="third"),
    ]
    with pytest.raises(ModelError) as caught:
        load(saved(tmp_path, onnx_model(nodes, [1, 4])))
    assert "FrobnicateA (node first, third); FrobnicateB (node second)" in str(caught.value)


def test_an_opset_out_of_range_is_named(tmp_path: Path):
    model = onnx_model([helper.make_node("Relu", ["x"], ["y"])], [1, 4], opset=5)
    with pytest.raises(ModelError, match="uses ONNX opset 5; opsets 7 to "):
        load(saved(tmp_path, model))


def test_onnx_dimensions_bind_by_name_and_by_input(tmp_path: Path):
    path = saved(tmp_path, onnx_model([helper.make_node("Relu", ["x"], ["y"])], ["batch", 4]))
    assert shape_of(load(path, dims={"batch": 3})) == ["3", "4"]
    assert shape_of(load(path, inputs={"x": [2, 4]})) == ["2", "4"]
    assert shape_of(load(path)) == ["batch", "4"]
    with pytest.raises(ModelError, match="no symbolic dimension q; it has batch"):
        load(path, dims={"q": 1})
    with pytest.raises(ModelError, match="input 'x' has rank 2, not 3"):
        load(path, inputs={"x": [1, 2, 3]})


def test_an_exported_program_keeps_its_numbers():
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    import tvm
    from tvm import relax

    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.GELU()).eval()
    x = torch.randn(2, 8)
    mod = load(torch.export.export(module, (x,)))
    got = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](
        tvm.runtime.tensor(x.numpy())
    )
    np.testing.assert_allclose(got.numpy(), module(x).detach().numpy(), rtol=1e-5, atol=1e-6)
