"""wmma fragments on the emulated device, in a kernel of our own text."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmfuse import cudasim
from tvmfuse.cudasim.programs import TARGET, operator_module

SIZE = 512  # 16 x 32 values: enough for A and B of every shape
BODY = re.compile(r"(__global__[^;{]*?\)\s*)\{.*?\n\}", re.DOTALL)
KERNEL = """{
  using namespace nvcuda;
  __shared__ half a[512];
  for (int i = threadIdx.x; i < 512; i += blockDim.x) a[i] = __float2half(x_ptr[i]);
  __syncthreads();
  wmma::fragment<wmma::matrix_a, M, N, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, M, N, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, M, N, 16, float> fc;
  wmma::fill_fragment(fc, 1.0f);
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, a, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  if (blockIdx.x == 0 && threadIdx.x < 32)
    wmma::store_matrix_sync(OUT_ptr, fc, N, wmma::mem_row_major);
}"""


@pytest.mark.parametrize(("m", "n"), [(16, 16), (32, 8), (8, 32)])
def test_wmma_multiplies_every_shape(m: int, n: int) -> None:
    x = np.random.default_rng(0).standard_normal(SIZE).astype("float32")
    with cudasim.device() as session:
        module = operator_module(relax.op.nn.relu, ((SIZE,),))
        executable = tvm.compile(module, target=tvm.target.Target(TARGET))

        def replaced(source: str) -> str:
            head = BODY.search(source)
            assert head
            names = re.findall(r"(\w+)_ptr", head[1])
            output = next(name for name in names if name != "p0")
            text = KERNEL.replace("x_ptr", "p0_ptr").replace("OUT", output)
            text = text.replace("M, N,", f"{m}, {n},").replace("fc, N,", f"fc, {n},")
            return BODY.sub(lambda match: match[1] + text, source)

        session.substitute(replaced)
        gpu = tvm.cuda(0)
        machine = relax.VirtualMachine(executable, gpu, memory_cfg="naive")
        result = machine["main"](tvm.runtime.tensor(x, gpu)).numpy()
    half = x.astype("float16").astype("float64")
    a, b = half[: m * 16].reshape(m, 16), half[: n * 16].reshape(n, 16)
    np.testing.assert_allclose(result[: m * n].reshape(m, n), a @ b.T + 1, rtol=1e-4, atol=1e-4)
