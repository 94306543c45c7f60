"""The command line as a user types it: output, exit codes, one line per error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_frontends import SCRIPT


def tvmfuse(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tvmfuse.cli", *[str(argument) for argument in arguments]]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(SCRIPT)
    return path


def test_optimize_writes_and_prints(model: Path, tmp_path: Path):
    done = tvmfuse("optimize", model, "--dim", "n=4", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "kernel launches" in done.stdout and "verified:" in done.stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["model"] == str(model)


def test_graph_prints_the_node_table(model: Path):
    done = tvmfuse("graph", model)
    assert done.returncode == 0
    assert "nn.relu" in done.stdout and "y: nx8 float32" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "nvidia/nvidia-h10"], "the nearest name is 'nvidia/nvidia-h100'"),
        (["--dim", "n"], "--dim 'n' is not NAME=N"),
        (["--dim", "n=0"], "with N a positive whole number"),
        (["--input", "x:4x"], "--input 'x:4x' is not NAME:1x3x160x160"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    model: Path, tmp_path: Path, arguments: list[str], message: str
):
    out = tmp_path / "out"
    done = tvmfuse("optimize", model, "-o", out, *arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()


def test_debug_shows_the_stack_trace(tmp_path: Path):
    done = tvmfuse("--debug", "optimize", tmp_path / "none.onnx", "-o", tmp_path / "out")
    assert done.returncode == 1 and "Traceback" in done.stderr


def test_an_output_that_is_a_file_is_refused_before_the_work(model: Path, tmp_path: Path):
    target = tmp_path / "taken"
    target.write_text("mine")
    done = tvmfuse("optimize", model, "--dim", "n=4", "-o", target)
    assert done.returncode == 2 and "is a file; give a folder" in done.stderr
    assert target.read_text() == "mine"
