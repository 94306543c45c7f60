"""The static gate: what ptxas says about a printed kernel, and the occupancy that follows."""

from __future__ import annotations

import pytest

from tvmfuse.cudasim import CudasimError, gate

SOURCE = """extern "C" __global__ void __launch_bounds__(256) scale_kernel(float* x) {
  __shared__ float tile[1024];
  tile[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  x[blockIdx.x * 256 + threadIdx.x] = 2 * tile[255 - threadIdx.x];
}"""
SM_80 = gate.Multiprocessor(threads=2048, blocks=32, shared=167936)

needs_nvcc = pytest.mark.skipif(gate.find_nvcc() is None, reason="no nvcc")


@needs_nvcc
def test_resources_of_a_kernel() -> None:
    resources = gate.check(SOURCE, ("sm_80",))
    assert resources is not None
    (kernel,) = resources
    assert (kernel.kernel, kernel.threads, kernel.static_shared) == ("scale_kernel", 256, 4096)
    assert 0 < kernel.registers < 64 and kernel.spill_stores == kernel.spill_loads == 0
    assert kernel.occupancy == 1.0


@needs_nvcc
def test_source_that_nvcc_refuses_is_an_error() -> None:
    with pytest.raises(CudasimError, match=r"nvcc refuses the source for sm_80: .*no_such"):
        gate.check(SOURCE.replace("2 *", "no_such *"), ("sm_80",))


def test_without_a_toolkit_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "find_nvcc", lambda: None)
    assert gate.check(SOURCE) is None


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(CudasimError, match="'sm_42'"):
        gate.check(SOURCE, ("sm_42",))


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "expected"),
    [
        (256, 32, 0, 1.0),
        (256, 64, 0, 0.5),  # 1024 threads' registers fit
        (1024, 64, 0, 0.5),
        (1024, 65, 0, 0.0),  # 72 registers a thread after rounding: no block fits
        (128, 32, 81920, 8 / 64),  # two blocks by shared memory
        (32, 16, 0, 0.5),  # 32 blocks of one warp
    ],
)
def test_occupancy(threads: int, registers: int, shared: int, expected: float) -> None:
    assert gate.occupancy(SM_80, threads, registers, shared) == expected
