"""The emulated device: TVM's own kernels give the right numbers, through TVM's CUDA runtime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import tvmfuse.cudasim as cudasim
from tvmfuse.cudasim import compiler

TARGET = "nvidia/nvidia-a100"


def build(
    operator: Callable[..., relax.Expr], shapes: list[tuple[int | str, ...]], dtype: str
) -> relax.VMExecutable:
    """One operator through TVM's default CUDA pipeline; a str in a shape is a symbol."""
    builder = relax.BlockBuilder()
    symbols = {
        name: tvm.tirx.Var(name, "int64") for s in shapes for name in s if isinstance(name, str)
    }
    params = [
        relax.Var(f"p{i}", relax.TensorType([symbols.get(d, d) for d in shape], dtype))  # type: ignore[arg-type]
        for i, shape in enumerate(shapes)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(operator(*params))
        builder.emit_func_output(result)
    return tvm.compile(builder.get(), target=tvm.target.Target(TARGET))


def inputs(shapes: list[tuple[int, ...]], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def run(executable: relax.VMExecutable, arrays: list[np.ndarray]) -> np.ndarray:
    device = tvm.cuda(0)
    machine = relax.VirtualMachine(executable, device, memory_cfg="naive")
    return machine["main"](*(tvm.runtime.tensor(a, device) for a in arrays)).numpy()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


CASES: dict[str, tuple[Callable, Callable, list[tuple[int, ...]]]] = {
    "add": (op.add, np.add, [(40, 70), (70,)]),
    "exp": (op.exp, np.exp, [(7, 33)]),
    "softmax": (op.nn.softmax, softmax, [(6, 200)]),
    "sum": (lambda a: op.sum(a, axis=[1]), lambda a: a.sum(1), [(5, 1000)]),
    "transpose": (op.permute_dims, np.transpose, [(50, 60)]),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_operator_is_right_and_silent(name: str, dtype: str) -> None:
    operator, reference, shapes = CASES[name]
    arrays = inputs(shapes, dtype)
    with cudasim.device(check=True) as session:
        result = run(build(operator, list(shapes), dtype), arrays)
    expected = reference(*(a.astype("float64") for a in arrays))
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * 4)
    assert session.findings == ()
    assert len(session.launches) == 1


def test_matmul_with_symbolic_rows_runs_for_several_sizes() -> None:
    with cudasim.device() as session:
        executable = build(op.matmul, [("n", 40), (40, 24)], "float32")
        for rows in (1, 33):
            a, b = inputs([(rows, 40), (40, 24)], "float32")
            np.testing.assert_allclose(run(executable, [a, b]), a @ b, rtol=1e-4, atol=1e-4)
    assert len(session.launches) >= 2


def test_exported_library_runs_with_a_cold_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library holds the source: it runs on a machine that never compiled it."""
    x = inputs([(7, 33)], "float32")[0]
    with cudasim.device():
        path = str(tmp_path / "exp.so")
        build(op.exp, [(7, 33)], "float32").export_library(path)
        monkeypatch.setattr(compiler, "cache_directory", lambda: tmp_path / "cold")
        loaded = tvm.runtime.load_module(path)
        device = tvm.cuda(0)
        machine = relax.VirtualMachine(loaded, device)
        result = machine["main"](tvm.runtime.tensor(x, device)).numpy()
    np.testing.assert_allclose(result, np.exp(x), rtol=1e-5)
    assert list((tmp_path / "cold").rglob("*.so"))


@pytest.mark.parametrize("tvm_first", [True, False])
def test_order_of_imports_does_not_matter(tvm_first: bool) -> None:
    first, second = "import tvm", "import tvmfuse.cudasim"
    lines = [first, second] if tvm_first else [second, first]
    code = "\n".join([*lines, "with tvmfuse.cudasim.device():", "    print(tvm.cuda(0).exist)"])
    result = subprocess.run(
        (sys.executable, "-c", code), capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == "True", result.stderr


def test_importing_the_package_does_not_import_tvm() -> None:
    code = "import tvmfuse.cudasim, sys; print('tvm' in sys.modules)"
    result = subprocess.run(
        (sys.executable, "-c", code), capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_missing_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    with pytest.raises(cudasim.CudasimError, match="install g\\+\\+"):
        compiler.find_compiler.__wrapped__()


def test_unknown_warp_model_is_refused() -> None:
    with (
        pytest.raises(cudasim.CudasimError, match="warp_model 'simd'"),
        cudasim.device(warp_model="simd"),  # type: ignore[arg-type]
    ):
        pass


def test_session_keeps_its_launches_and_a_later_one_starts_empty() -> None:
    x = inputs([(64,)], "float32")[0]
    with cudasim.device() as first:
        executable = build(op.exp, [(64,)], "float32")
        run(executable, [x])
    with cudasim.device() as second:
        assert second.launches == ()
        run(executable, [x])
        run(executable, [x])
    assert len(first.launches) == 1 and len(second.launches) == 2
    assert first.launches[0].block[0] * first.launches[0].grid[0] >= 64


def test_compiling_outside_a_session_still_works() -> None:
    """Once loaded, the CUDA runtime asks for an image of every module that anyone compiles."""
    x = inputs([(48,)], "float32")[0]
    with cudasim.device():
        pass
    executable = build(op.exp, [(48,)], "float32")
    with cudasim.device():
        np.testing.assert_allclose(run(executable, [x]), np.exp(x), rtol=1e-5)


def test_trace_counts_sectors_of_a_copy_and_of_a_transpose() -> None:
    with cudasim.device(trace=True) as session:
        run(build(op.nn.relu, [(64, 64)], "float32"), inputs([(64, 64)], "float32"))
    counters = session.counters[0]
    assert counters.global_read.bytes == counters.global_write.bytes == 64 * 64 * 4
    assert counters.global_read.transactions == counters.global_read.ideal == 64 * 64 * 4 // 32


def test_trace_counts_scalar_operations_by_kind() -> None:
    """Exact counts: TVM computes each exponential of a softmax twice."""
    shapes: list[tuple[int, ...]] = [(64, 48), (48, 64)]
    with cudasim.device(trace=True) as session:
        run(build(op.matmul, list(shapes), "float32"), inputs(shapes, "float32"))
    assert session.counters[0].scalar_operations == {"add": 48 * 64**2, "multiply": 48 * 64**2}
    with cudasim.device(trace=True) as session:
        run(build(op.nn.softmax, [(6, 200)], "float32"), inputs([(6, 200)], "float32"))
    counted = session.counters[0].scalar_operations
    assert (counted["divide"], counted["special"]) == (6 * 200, 2 * 6 * 200)


def test_lockstep_warps_make_the_bfloat16_reduction_right() -> None:
    """TVM drops the warp barriers of this reduction: right in lockstep only, a race otherwise."""
    shapes, values = [(4, 100)], inputs([(4, 100)], "float32")[0]
    device = None
    results = {}
    for model in ("lockstep", "independent"):
        with cudasim.device(check=True, warp_model=model) as session:  # type: ignore[arg-type]
            executable = build(lambda a: op.sum(a, axis=[1]), list(shapes), "bfloat16")
            device = tvm.cuda(0)
            machine = relax.VirtualMachine(executable, device, memory_cfg="naive")
            bits = (values.view("uint32") >> 16).astype("uint16")
            x = tvm.runtime.empty((4, 100), "bfloat16", device)
            x.copyfrom(bits.view(x.numpy().dtype))
            out = machine["main"](x).numpy().view("uint16").astype("uint32") << 16
            results[model] = (out.view("float32"), session.findings)
    truncated = ((values.view("uint32") >> 16) << 16).view("float32")
    np.testing.assert_allclose(results["lockstep"][0], truncated.sum(1), rtol=0.05, atol=0.3)
    assert results["lockstep"][1] == ()
    assert any("race" in finding.kind for finding in results["independent"][1])
