"""The lecture's example: MatMul -> Add -> ReLU on x, W and b."""

from __future__ import annotations

import tvm
from tvm import relax

ROWS, INPUTS, OUTPUTS = 64, 128, 96


def lecture_module(rows: int | None = ROWS) -> tvm.IRModule:
    """``relu(matmul(x, W) + b)`` in float32; with ``rows=None`` the batch is symbolic."""
    batch = tvm.tirx.Var("n", "int64") if rows is None else rows
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, INPUTS), "float32"))
    weight = relax.Var("W", relax.TensorType((INPUTS, OUTPUTS), "float32"))
    bias = relax.Var("b", relax.TensorType((OUTPUTS,), "float32"))
    with builder.function("main", [x, weight, bias]):
        with builder.dataflow():
            h = builder.emit(relax.op.matmul(x, weight), name_hint="h")
            a = builder.emit(relax.op.add(h, bias), name_hint="a")
            y = builder.emit_output(relax.op.nn.relu(a), name_hint="y")
        builder.emit_func_output(y)
    return builder.get()
