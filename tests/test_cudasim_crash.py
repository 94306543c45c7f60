"""Kernels that crash, hang or misbehave end in an error that names them; the device lives on."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from tvm import relax

import tvmfuse.cudasim as cudasim

BODY = re.compile(r"(__global__[^;{]*?\)\s*)\{.*?\n\}", re.DOTALL)
SIZE = 256


def build() -> relax.VMExecutable:
    """relu of one row: one kernel with the parameters (T_relu_ptr, x_ptr) in some order."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((SIZE,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.relu(x))
        builder.emit_func_output(result)
    return tvm.compile(builder.get(), target=tvm.target.Target("nvidia/nvidia-a100"))


class Runner:
    """Runs the relu kernel with another body."""

    def __init__(self, session: cudasim.Session) -> None:
        self.session = session
        self.device = tvm.cuda(0)
        self.machine = relax.VirtualMachine(build(), self.device, memory_cfg="naive")
        self.x = np.linspace(-1, 1, SIZE, dtype="float32")

    def __call__(self, body: str | None = None) -> np.ndarray:
        def replaced(source: str) -> str:
            assert BODY.search(source)
            return BODY.sub(lambda m: m[1] + "{ float* x = x_ptr;\n" + str(body) + "\n}", source)

        self.session.substitute(replaced if body else None)
        return self.machine["main"](tvm.runtime.tensor(self.x, self.device)).numpy()


@pytest.fixture(scope="module")
def run() -> Iterator[Runner]:
    with cudasim.device(time_budget=1.0) as session:
        yield Runner(session)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x[1 << 28] = 1.0f;", "invalid memory access"),
        ("*(volatile float*)nullptr = 1.0f;", "invalid memory access"),
        ("volatile int zero = 0; x[0] = int(threadIdx.x + 7) / zero;", "integer division by zero"),
        ("volatile int go = 1; while (go) {}", "time budget"),
        ("volatile int go = 1; while (go) { __syncthreads(); }", "time budget"),
        ("if (threadIdx.x < 7)\n __syncthreads();\n else\n __syncthreads();", "divergent"),
        ("if (threadIdx.x == 3) __shfl_sync(~0u, 1, 0); else __syncthreads();", "deadlock"),
        ("__shfl_sync(0xfffffff0u, 1, 0);", "mask lacks the calling lane"),
    ],
)
def test_bad_kernel_is_an_error_that_names_it(run: Runner, body: str, message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        run(body)
    assert "relu_kernel" in str(caught.value).split("\n")[0]
    np.testing.assert_array_equal(run(), np.maximum(run.x, 0))  # the device lives on


@pytest.mark.parametrize("check", [False, True])
def test_crash_names_the_line_of_the_printed_source(run: Runner, check: bool) -> None:
    lines = []

    def broken(source: str) -> str:
        opening = re.search(r"__global__[^;{]*\{", source)
        assert opening
        lines.append(source.count("\n", 0, opening.end()) + 3)
        return f"{source[: opening.end()]}\n\nx_ptr[1 << 28] = 1.0f;\n{source[opening.end() :]}"

    with cudasim.device(check=check) as session:
        session.substitute(broken)
        with pytest.raises(Exception, match="relu_kernel") as caught:
            run.machine["main"](tvm.runtime.tensor(run.x, run.device))
    assert f"line {lines[0]} of the printed CUDA" in str(caught.value)


def test_endless_recursion_is_a_stack_overflow(run: Runner) -> None:
    body = (
        "struct R { __attribute__((noinline)) static float f(float v, volatile float* p) "
        "{ volatile float w[64]; w[int(v) & 63] = *p; return f(v + 1, w) + w[3]; } };\n"
        "x[0] = R::f(x[1], x);"
    )
    with pytest.raises(Exception, match="stack overflow"):
        run(body)
    np.testing.assert_array_equal(run(), np.maximum(run.x, 0))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('asm volatile("wgmma.fence.sync.aligned;");', r"wgmma\.fence\.sync\.aligned"),
        ('asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(0));', r"mbarrier\.init"),
        ("no_such_intrinsic(x[0]);", "no_such_intrinsic"),
    ],
)
def test_unknown_instruction_is_an_error_that_names_it(
    run: Runner, body: str, message: str
) -> None:
    with pytest.raises(Exception, match=message) as caught:
        run(body)
    assert "relu_kernel" in str(caught.value)


def test_the_device_offers_no_times(run: Runner) -> None:
    x = tvm.runtime.tensor(run.x, run.device)
    run()
    with pytest.raises(Exception, match="offers no times"):
        run.machine.time_evaluator("main", run.device, number=1)(x)
