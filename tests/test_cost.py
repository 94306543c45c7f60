"""Costs are counted alike on every target, and as a reader would count them by hand."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

import tvmfuse
from tvmfuse.baseline import build_baseline
from tvmfuse.target import resolve_target

ROWS, TABLE, WIDTH = 4, 1000, 16
FLOAT, INDEX = 4, 8


def embedding() -> tvm.IRModule:
    """take(table, ids) + bias: the table is gathered from, so only ROWS of it move."""
    builder = relax.BlockBuilder()
    ids = relax.Var("ids", relax.TensorType((ROWS,), "int64"))
    table = relax.Var("table", relax.TensorType((TABLE, WIDTH), "float32"))
    bias = relax.Var("bias", relax.TensorType((WIDTH,), "float32"))
    with builder.function("main", [ids, table, bias]):
        with builder.dataflow():
            rows = builder.emit(relax.op.take(table, ids, axis=0))
            result = builder.emit_output(relax.op.add(rows, bias))
        builder.emit_func_output(result)
    return builder.get()


EXPECTED = ROWS * INDEX + ROWS * WIDTH * FLOAT + WIDTH * FLOAT + ROWS * WIDTH * FLOAT


@pytest.mark.parametrize("target", ["llvm", "sm_80"])
def test_a_gathered_table_counts_the_rows_that_move(target: str):
    _, report = tvmfuse.compile(embedding(), target, options=tvmfuse.Options(verify=False))
    assert (report.after.kernels, report.after.bytes_moved) == (1, EXPECTED)
    assert report.after.intermediate_bytes == 0
    before = build_baseline(embedding(), resolve_target(target), run=False).costs
    rows = ROWS * WIDTH * FLOAT
    assert before.bytes_moved in (EXPECTED, EXPECTED + 2 * rows)  # fused by TVM, or not


def test_intermediates_and_peak_are_what_the_planner_reserves():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 64), "float32"))
    w = relax.Var("w", relax.TensorType((64, 64), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            value: relax.Expr = x
            for _ in range(4):
                value = builder.emit(relax.op.matmul(value, w))
            result = builder.emit_output(relax.op.nn.relu(value))
        builder.emit_func_output(result)
    _, report = tvmfuse.compile(builder.get(), "llvm", options=tvmfuse.Options(verify=False))
    one = 8 * 64 * FLOAT
    assert report.after.kernels == 4
    assert report.after.intermediate_bytes == 3 * one  # the last is the result
    assert report.after.peak_bytes == 2 * one + one  # two that alternate, and the result
    assert report.after.bytes_moved == 4 * (2 * one + 64 * 64 * FLOAT)
