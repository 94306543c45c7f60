"""TVM's default CUDA pipeline on the emulated device against its LLVM code generator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import tvmfuse.cudasim as cudasim

TARGET = "nvidia/nvidia-a100"
Operator = Callable[..., relax.Expr]


def named(*names: str) -> dict[str, Operator]:
    return {name: getattr(op, name) for name in names}


UNARY: dict[str, Operator] = {
    **named("exp", "sqrt", "rsqrt", "log", "tanh", "sigmoid", "erf", "sin", "cos", "floor"),
    **named("ceil", "trunc", "abs", "sign", "negative", "square", "isnan", "isfinite", "isinf"),
    "relu": op.nn.relu,
    "gelu": op.nn.gelu,
    "silu": op.nn.silu,
    "clip": lambda x: op.clip(x, 0.5, 1.5),
    "transpose": op.permute_dims,
    "reshape": lambda x: op.reshape(x, (20, 12)),
    "flip": lambda x: op.flip(x, axis=1),
    "tile": lambda x: op.tile(x, (2, 3)),
    "repeat": lambda x: op.repeat(x, 2, axis=1),
    "expand_dims": lambda x: op.expand_dims(x, 0),
    "strided_slice": lambda x: op.strided_slice(x, [1], [1], [9], [2]),
    "broadcast_to": lambda x: op.broadcast_to(x, (3, 12, 20)),
    "pad": lambda x: op.nn.pad(x, (1, 2, 3, 0)),
    "astype": lambda x: op.astype(x, "int32"),
}
BINARY: dict[str, Operator] = {
    **named("add", "subtract", "multiply", "divide", "maximum", "minimum", "power"),
    **named("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
    "floor_divide": op.floor_divide,
    "where": lambda x, y: op.where(op.greater(x, y), x, y),
    "concat": lambda x, y: op.concat([x, y], axis=1),
    "stack": lambda x, y: op.stack([x, y], axis=0),
    "matmul": lambda x, y: op.matmul(x, op.permute_dims(y), out_dtype="float32"),
}
REDUCTIONS: dict[str, Operator] = {
    "sum": lambda x: op.sum(x, axis=[1]),
    "mean": lambda x: op.mean(x, axis=[1]),
    "max": lambda x: op.max(x, axis=[0]),
    "min": lambda x: op.min(x, axis=[1]),
    "prod": lambda x: op.prod(x, axis=[0]),
    "variance": lambda x: op.variance(x, axis=[1]),
    "argmax": lambda x: op.argmax(x, axis=1),
    "argmin": lambda x: op.argmin(x, axis=1),
    "softmax": op.nn.softmax,
    "log_softmax": op.nn.log_softmax,
}
GROUPS = {"unary": (UNARY, 1), "binary": (BINARY, 2), "reductions": (REDUCTIONS, 1)}


def program(operators: dict[str, Operator], arity: int, dtype: str) -> tvm.IRModule:
    """One function that returns the result of every operator."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", relax.TensorType((12, 20), dtype)) for i in range(arity)]
    with builder.function("main", params):
        with builder.dataflow():
            values = [builder.emit(operator(*params)) for operator in operators.values()]
            result = builder.emit_output(relax.Tuple(values))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("group", GROUPS)
def test_operators_agree_with_llvm(group: str, dtype: str) -> None:
    operators, arity = GROUPS[group]
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.5, 2, (12, 20)).astype(dtype) for _ in range(arity)]
    host = relax.VirtualMachine(
        tvm.compile(program(operators, arity, dtype), target="llvm"), tvm.cpu()
    )
    expected = host["main"](*(tvm.runtime.tensor(a) for a in arrays))
    with cudasim.device(check=True) as session:
        target = tvm.target.Target(TARGET)
        executable = tvm.compile(program(operators, arity, dtype), target=target)
        gpu = tvm.cuda(0)
        machine = relax.VirtualMachine(executable, gpu, memory_cfg="naive")
        results = machine["main"](*(tvm.runtime.tensor(a, gpu) for a in arrays))
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    wrong = []
    for name, result, wanted in zip(operators, results, expected, strict=True):
        if not np.allclose(result.numpy(), wanted.numpy(), rtol=tolerance, atol=tolerance):
            wrong.append(name)
    assert not wrong
    assert session.findings == ()
