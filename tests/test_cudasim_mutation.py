"""The checker is silent on intact kernels and reports their harmful mutants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import tvmfuse.cudasim as cudasim
from tvmfuse.cudasim.mutation import Verdict, judge, table

TARGET = "nvidia/nvidia-a100"
Shapes = tuple[tuple[int, ...], ...]
PROGRAMS: dict[str, tuple[Callable[..., relax.Expr], Shapes]] = {
    "relu": (op.nn.relu, ((1500,),)),
    "add": (op.add, ((40, 70), (70,))),
    "sum": (lambda a: op.sum(a, axis=[1]), ((5, 1000),)),
    "softmax": (op.nn.softmax, ((6, 200),)),
    "layer_norm": (
        lambda a, g, b: op.nn.layer_norm(a, g, b, axes=[-1]),
        ((9, 100), (100,), (100,)),
    ),
    "matmul": (op.matmul, ((50, 40), (40, 36))),
    "transpose": (op.permute_dims, ((50, 60),)),
    "max_pool": (lambda a: op.nn.max_pool2d(a, (2, 2), (2, 2)), ((1, 3, 10, 10),)),
}


def cuda_source(module: tvm.runtime.Module) -> str:
    """Printed CUDA of a module or of the first import that has some."""
    if module.kind == "cuda":
        return str(module.inspect_source())
    return next((text for m in module.imports if (text := cuda_source(m))), "")


def judged(name: str, limit: int) -> list[Verdict]:
    operator, shapes = PROGRAMS[name]
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"p{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(operator(*params))
        builder.emit_func_output(result)
    with cudasim.device(check=True, time_budget=20) as session:
        executable = tvm.compile(builder.get(), target=tvm.target.Target(TARGET))
        device = tvm.cuda(0)
        machine = relax.VirtualMachine(executable, device, memory_cfg="naive")
        rng = np.random.default_rng(0)
        inputs = [
            tvm.runtime.tensor(rng.standard_normal(shape).astype("float32"), device)
            for shape in shapes
        ]
        source = cuda_source(executable.mod)
        assert source
        return judge(session, lambda: machine["main"](*inputs).numpy(), source, limit)


@pytest.mark.parametrize("name", ["relu", "softmax", "sum"])
def test_harmful_mutants_are_reported(name: str) -> None:
    verdicts = judged(name, limit=2)
    assert verdicts
    missed = [
        v
        for v in verdicts
        if v.outcome == "wrong result" and v.mutant.kind in ("dropped barrier", "dropped wait")
    ]
    assert not missed, table({name: verdicts})
    assert any(v.outcome == "reported" for v in verdicts), table({name: verdicts})


@pytest.mark.slow
def test_table_of_all_mutants(capsys: pytest.CaptureFixture[str]) -> None:
    """``pytest -m slow -s tests/test_cudasim_mutation.py`` prints the table."""
    verdicts = {name: judged(name, limit=0) for name in PROGRAMS}
    with capsys.disabled():
        print("\n" + table(verdicts))
    missed = [
        v
        for program in verdicts.values()
        for v in program
        if v.outcome == "wrong result" and v.mutant.kind in ("dropped barrier", "dropped wait")
    ]
    assert not missed
