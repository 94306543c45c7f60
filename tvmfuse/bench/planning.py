"""Is planning linear?  Our front half against TVM's own on graphs of growing size."""

from __future__ import annotations

import time
from dataclasses import dataclass

import tvm
from rich.table import Table
from tvm import relax

from ..options import Options
from ..passes.fuse import plan_and_outline
from ..passes.lower import lower
from ..passes.prepare import prepare
from ..patterns import DEFAULT

SIZES = (1250, 2500, 5000, 10000)


@dataclass(frozen=True)
class PlanningTime:
    """Seconds for one graph: ours (prepare, plan, outline, lower) and TVM's three passes."""

    operators: int
    ours_s: float
    stock_s: float
    prepare_s: float

    @property
    def ratio(self) -> float:
        """Ours over TVM's."""
        return self.ours_s / self.stock_s


def transformer_like(operators: int) -> tvm.IRModule:
    """A chain of blocks of nine operators: matmuls, biases, activations, residuals, norms."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((16, 64), "float32"))
    wide = relax.Var("wide", relax.TensorType((64, 128), "float32"))
    narrow = relax.Var("narrow", relax.TensorType((128, 64), "float32"))
    bias = relax.Var("bias", relax.TensorType((128,), "float32"))
    gamma = relax.Var("gamma", relax.TensorType((64,), "float32"))
    with builder.function("main", [x, wide, narrow, bias, gamma]):
        with builder.dataflow():
            value: relax.Expr = x
            for _ in range(operators // 9):
                norm = builder.emit(relax.op.nn.layer_norm(value, gamma, gamma, axes=[-1]))
                up = builder.emit(relax.op.add(builder.emit(relax.op.matmul(norm, wide)), bias))
                active = builder.emit(relax.op.nn.gelu(up))
                down = builder.emit(relax.op.matmul(active, narrow))
                added = builder.emit(relax.op.add(down, value))
                gate = builder.emit(relax.op.sigmoid(builder.emit(relax.op.exp(added))))
                value = builder.emit(relax.op.multiply(gate, added))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def measure(sizes: tuple[int, ...] = SIZES, rounds: int = 3) -> list[PlanningTime]:
    """The least of ``rounds`` interleaved times per size."""
    results = []
    for size in sizes:
        mod = transformer_like(size)
        count = sum(len(block.bindings) for block in mod["main"].body.blocks)
        prepared_s, ours, stock = [], [], []
        for _ in range(rounds):
            start = time.perf_counter()
            prepared = prepare(mod, Options())
            prepared_s.append(time.perf_counter() - start)
            _plan(prepared)
            ours.append(time.perf_counter() - start)
            start = time.perf_counter()
            _stock(mod)
            stock.append(time.perf_counter() - start)
        results.append(PlanningTime(count, min(ours), min(stock), min(prepared_s)))
    return results


def _plan(prepared: tvm.IRModule) -> None:
    outlined, _, _ = plan_and_outline(prepared, DEFAULT, Options(), {})
    lower(outlined)


def _stock(mod: tvm.IRModule) -> None:
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    tvm.transform.Sequential(passes)(mod)


def planning_table(times: list[PlanningTime]) -> Table:
    """One line per size."""
    table = Table(title="planning and fusing, full library", title_justify="left")
    for column in ("operators", "ours s", "of it prepare s", "TVM s", "ours / TVM"):
        table.add_column(column, justify="right")
    for item in times:
        table.add_row(
            f"{item.operators:,}",
            f"{item.ours_s:.2f}",
            f"{item.prepare_s:.2f}",
            f"{item.stock_s:.2f}",
            f"{item.ratio:.2f}",
        )
    return table
