"""Build one lowered fused group for tests of schedule rules and of the emulated device."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, tirx

from tvmfuse.passes.lower import lower

Tensor = tuple[tuple[int, ...], str]


def group_module(
    inputs: dict[str, Tensor],
    body: Callable[..., relax.Expr | tuple[relax.Expr, ...]],
    name: str = "fused",
) -> tvm.IRModule:
    """One primitive function made of the operators that ``body`` calls, and a main that calls it.

    ``body`` takes one Relax variable per input and returns one expression or a tuple of them.
    """
    builder = relax.BlockBuilder()

    def emit(params: list[relax.Var], primitive: bool) -> None:
        with builder.dataflow():
            result = body(*params)
            outputs = result if isinstance(result, tuple) else (result,)
            outputs = tuple(builder.emit_output(output) for output in outputs)
        builder.emit_func_output(outputs if len(outputs) > 1 else outputs[0])

    def parameters() -> list[relax.Var]:
        return [
            relax.Var(key, relax.TensorType(shape, dtype)) for key, (shape, dtype) in inputs.items()
        ]

    params = parameters()
    with builder.function(name, params, attrs={"Primitive": True}, private=True):
        emit(params, primitive=True)
    group = builder.get().get_global_var(name)
    outer = parameters()
    with builder.function("main", outer):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(group, outer))
        builder.emit_func_output(result)
    return builder.get()


def lowered(
    inputs: dict[str, Tensor],
    body: Callable[..., relax.Expr | tuple[relax.Expr, ...]],
) -> tirx.PrimFunc:
    """The one PrimFunc of the group that ``body`` describes, not scheduled yet."""
    mod = lower(group_module(inputs, body))
    functions = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    if len(functions) != 1:
        raise ValueError(f"the group lowers to {len(functions)} functions; expected one")
    return functions[0]
