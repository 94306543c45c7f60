"""Turn a scheduled module into a VM executable: TVM's own passes, minus those that fuse again.

``relax.build`` with the default pipeline would legalise and fuse once more, so the passes that
follow fusion are listed here and ``None`` is given as its pipeline.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import tvm
from tvm import relax, tirx
from tvm.target import Target

from ..schedules import finish_for


def stock_pipeline(target: Target) -> ModuleType:
    """TVM's module with the pieces of its default pipeline for this target."""
    backend = "cuda" if target.kind.name == "cuda" else "cpu_generic"
    return import_module(f"tvm.relax.backend.{backend}.pipeline")


def dispatch_libraries(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Sorts, scans and sampling as the functions that TVM has for this target."""
    with target:
        passes = stock_pipeline(target).library_dispatch_passes(target)
        return tvm.transform.Sequential(passes)(mod)


def dataflow_lower(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Dataflow gone, lone reshapes made views, every call an explicit kernel call."""
    with target:
        passes = stock_pipeline(target).dataflow_lower_passes(target)
        return tvm.transform.Sequential(passes)(mod)


def lower_to_memory(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Buffers planned and reused: the form in which a run's memory can be read off."""
    with target:
        return relax.transform.StaticPlanBlockMemory()(dataflow_lower(mod, target))


def finalize(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """From explicit kernel calls to what the VM's code generator reads."""
    with target:
        return tvm.transform.Sequential(stock_pipeline(target).finalize_passes(target))(mod)


def finish_kernels(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The last rewriting of scheduled kernels that the target's rules ask for."""
    finish = finish_for(target)
    result = mod.clone()
    for symbol, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            result.update_func(result.get_global_var(symbol.name_hint), finish(func))
    return result


def build(mod: tvm.IRModule, target: Target) -> relax.VMExecutable:
    """Compile a module whose kernels are all scheduled."""
    with target:
        mod = finalize(dataflow_lower(mod, target), target)
        return relax.build(mod, target=target, relax_pipeline=None)
