"""The report: complete, valid against its schema, and readable as text."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import pytest
import tvm
from lecture import lecture_module

import tvmfuse
from tvmfuse.job import optimize
from tvmfuse.passes.prepare import prepare
from tvmfuse.reasons import MEANING, Code
from tvmfuse.report.text import WIDTH, render_text


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("out")
    return optimize(lecture_module(), "llvm", folder)


def schema() -> dict:
    return json.loads(resources.files("tvmfuse.report").joinpath("report.schema.json").read_text())


def test_report_json_follows_its_schema(written):
    content = json.loads((written.folder / "report.json").read_text())
    jsonschema.validate(content, schema())
    assert content["before"]["kernels"] >= content["after"]["kernels"] == 1
    assert content["latency"]["ratio"] == pytest.approx(
        content["latency"]["before_us"] / content["latency"]["after_us"]
    )
    assert content["versions"]["apache-tvm"] == "0.27.0.post1"


def test_the_schema_refuses_an_unknown_code(written):
    content = json.loads((written.folder / "report.json").read_text())
    content["edges"][0]["code"] = "BECAUSE"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema())


def test_the_schema_knows_every_code_and_every_code_has_a_meaning():
    assert schema()["$defs"]["code"]["enum"] == [code.value for code in Code]
    assert set(MEANING) == set(Code)


def test_every_edge_of_the_graph_is_in_the_report():
    mod = lecture_module()
    _, report = tvmfuse.compile(mod, "llvm", options=tvmfuse.Options(verify=False))
    graph = tvmfuse.build_graph(prepare(mod, tvmfuse.Options()))
    names = [(graph.nodes[a].name, graph.nodes[b].name) for a, b in graph.edges()]
    assert [(edge.producer, edge.consumer) for edge in report.edges] == names


def test_report_text_holds_every_table_within_its_width(written):
    text = (written.folder / "report.txt").read_text()
    assert text == render_text(written.report)
    assert max(len(line) for line in text.splitlines() if not line.startswith("target")) <= WIDTH
    for title in ("before and after", "fused functions", "producer-consumer edges", "seconds"):
        assert title in text


def test_the_library_loads_with_plain_tvm(written):
    module = tvm.runtime.load_module(str(written.folder / "model.so"))
    machine = tvm.relax.VirtualMachine(module, tvm.cpu())
    import numpy as np

    x = np.ones((64, 128), "float32")
    result = machine["main"](
        tvm.runtime.tensor(x),
        tvm.runtime.tensor(np.ones((128, 96), "float32")),
        tvm.runtime.tensor(np.full((96,), -28.0, "float32")),
    )
    np.testing.assert_allclose(result.numpy(), np.full((64, 96), 100.0))


def test_nothing_but_the_results_is_left(written):
    names = sorted(path.name for path in written.folder.iterdir())
    assert names == ["model.so", "report.json", "report.txt"]
