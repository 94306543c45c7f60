"""The same module through TVM's own default pipeline: what "before" means everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax, tirx
from tvm.target import Target

from .cost import Costs, measure_costs
from .graph import build_graph
from .passes.build import build, lower_to_memory, stock_pipeline
from .passes.fuse import graph_functions
from .passes.kernels import kernel_count


@dataclass(frozen=True)
class Baseline:
    """TVM's result: its costs, and executables by variant where the target can run here."""

    costs: Costs
    executables: dict[str, relax.VMExecutable]


def stock_modules(
    mod: tvm.IRModule, target: Target, *, best: bool = False
) -> tuple[tvm.IRModule, tvm.IRModule]:
    """``mod`` after TVM's default legalisation and fusion, and after its default schedules.

    The two are the same on CPUs, for which TVM has no default schedules.

    ``best`` first runs the passes that TVM has but does not use by default: batch norms folded
    or decomposed, common subexpressions shared, parallel matmuls combined.
    """
    stock = stock_pipeline(target)
    extra: list[tvm.transform.Pass] = []
    if best:
        extra = [
            relax.transform.ConvertToDataflow(),
            relax.transform.FoldBatchnormToConv2D(),
            relax.transform.DecomposeOpsForInference(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.EliminateCommonSubexpr(),
        ]
    legalize = list(stock.legalize_passes(target))
    schedule = legalize[-1:] if target.kind.name == "cuda" else []
    passes = [*extra, *stock.library_dispatch_passes(target)]
    passes += legalize[: len(legalize) - len(schedule)]
    with target:
        unscheduled = tvm.transform.Sequential(passes)(mod)
        # Cloned: ApplyDefaultSchedule changes its input in place.
        return unscheduled, tvm.transform.Sequential(schedule)(unscheduled.clone())


def build_baseline(mod: tvm.IRModule, target: Target, *, run: bool, best: bool = False) -> Baseline:
    """Compile ``mod`` as TVM would; ``run``: also build what can be timed on this machine.

    On the CPU there are two variants, ``plain llvm`` and ``llvm + features``, because either may
    be faster (naming the features makes TVM's naive convolutions slower, its matmuls faster).
    """
    unscheduled, lowered = stock_modules(mod, target, best=best)
    kernels = {
        symbol.name_hint: kernel_count(func, target.kind.name)
        for symbol, func in lowered.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    name = graph_functions(mod)[0]
    dataflow = relax.transform.ConvertToDataflow()(mod)
    operators = len(build_graph(dataflow, name).nodes)
    planned = lower_to_memory(lowered, target)
    costs = measure_costs(planned, unscheduled, operators, kernels, name)
    executables: dict[str, relax.VMExecutable] = {}
    if run and target.kind.name == "llvm":
        executables["plain llvm"] = build(lowered, Target("llvm"))
        executables["llvm + features"] = build(lowered, target)
    elif run:
        executables["default"] = build(lowered, target)
    return Baseline(costs, executables)
