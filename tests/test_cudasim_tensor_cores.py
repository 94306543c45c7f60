"""ldmatrix, mma.sync and wmma on the emulated device, through TVM's own tensor intrinsics."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te
from tvm.testing.tir import mma_schedule

import tvmfuse.cudasim as cudasim

SIZE = 64


def layout(rows: int, columns: int) -> Callable[[int, int], tuple]:
    """Where ldmatrix puts the elements of tiles of this size."""
    from tvm.s_tir.tensor_intrin import cuda as intrinsics

    lanes = {(16, 16): "32x8", (16, 32): "32x16", (32, 16): "32x16"}[rows, columns]
    place = getattr(intrinsics, f"shared_{rows}x{columns}_to_ldmatrix_{lanes}_layout")
    return lambda i, j: (i // rows, j // columns, *place(i % rows, j % columns))


def matmul(in_dtype: str, out_dtype: str, transposed: bool) -> tvm.tirx.PrimFunc:
    a = te.placeholder((SIZE, SIZE), in_dtype, name="A")
    b = te.placeholder((SIZE, SIZE), in_dtype, name="B")
    k = te.reduce_axis((0, SIZE), name="k")

    def product(i: tvm.tirx.Var, j: tvm.tirx.Var) -> tvm.tirx.PrimExpr:
        factors = (a[i, k], b[j, k] if transposed else b[k, j])
        return te.sum(factors[0].astype(out_dtype) * factors[1].astype(out_dtype), axis=[k])

    return te.create_prim_func([a, b, te.compute((SIZE, SIZE), product, name="C")])


@pytest.mark.slow  # importing TVM's tensor intrinsics alone takes most of a minute
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("in_dtype", "out_dtype"), [("float16", "float32"), ("float16", "float16"), ("int8", "int32")]
)
def test_mma_schedule_is_right_and_silent(in_dtype: str, out_dtype: str, transposed: bool) -> None:
    from tvm.s_tir.tensor_intrin import cuda as intrinsics

    short = {"float16": "f16", "float32": "f32", "int8": "i8", "int32": "i32"}
    source, target = short[in_dtype], short[out_dtype]
    trans = "_TRANS" if transposed else ""
    depth = 32 if in_dtype == "int8" else 16
    layout_a = layout(16, depth)
    layout_b = layout(16, depth) if transposed else layout(depth, 16)
    schedule = mma_schedule(
        matmul(in_dtype, out_dtype, transposed),
        depth,
        in_dtype,
        transposed,
        [1, 1, 1, 2, 2],
        [1, 1, 1, 1, 4],
        [SIZE // depth // 2, 2, 1] if depth == 16 else [SIZE // depth, 1, 1],
        layout_a,
        layout_b,
        layout(16, 16),
        getattr(intrinsics, f"LDMATRIX_{source}_A_INTRIN"),
        getattr(intrinsics, f"LDMATRIX_{source}_B{trans}_INTRIN"),
        getattr(intrinsics, f"MMA_{source}{source}{target}{trans}{'_B' if trans else ''}_INTRIN"),
        getattr(intrinsics, f"MMA_fill_16x16_{target}_INTRIN"),
        getattr(intrinsics, f"MMA_store_16x16_{target}_global_INTRIN"),
    )
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(-128, 128, (SIZE, SIZE)).astype(in_dtype)
        if in_dtype == "int8"
        else rng.standard_normal((SIZE, SIZE)).astype(in_dtype)
        for _ in range(2)
    )
    with cudasim.device(check=True, trace=True) as session:
        kernel = tvm.compile(schedule.mod, target="nvidia/nvidia-a100")
        gpu = tvm.cuda(0)
        result = tvm.runtime.empty((SIZE, SIZE), out_dtype, gpu)
        kernel["main"](tvm.runtime.tensor(a, gpu), tvm.runtime.tensor(b, gpu), result)
    expected = a.astype("float64") @ (b.T if transposed else b).astype("float64")
    tolerance = {"float32": 1e-4, "float16": 0.05, "int32": 0}[out_dtype]
    np.testing.assert_allclose(result.numpy(), expected, rtol=tolerance, atol=tolerance)
    assert session.findings == ()
    assert session.counters[0].matrix_flops == 2 * SIZE**3


@pytest.mark.parametrize(
    "kind", ["wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", "tcgen05.mma.cta_group::1"]
)
def test_later_tensor_cores_are_refused_by_name(kind: str) -> None:
    from tvmfuse.cudasim.source import rewrite

    source = f'__global__ void big_kernel(int* p) {{ asm volatile("{kind} %0;" :: "r"(p[0])); }}'
    with pytest.raises(cudasim.NotEmulatedError, match="kernel big_kernel") as caught:
        rewrite(source)
    assert kind in str(caught.value)


def test_half_and_bfloat16_round_as_the_formats_say() -> None:
    """Conversions in half.h and bfloat16.h against NumPy's, over every exponent."""
    import ctypes
    import subprocess
    import tempfile
    from pathlib import Path

    from tvmfuse.cudasim.compiler import DEVICE, find_compiler

    code = """#include "vector_types.h"
#include "bfloat16.h"
#include "fp8.h"
extern "C" void convert(const float* in, unsigned short* h, unsigned short* b, float* hf,
                        unsigned char* e4, unsigned char* e5, int n) {
  for (int i = 0; i < n; ++i) {
    h[i] = __half(in[i]).bits; b[i] = __nv_bfloat16(in[i]).bits; hf[i] = float(__half(in[i]));
    e4[i] = __nv_fp8_e4m3(in[i]).__x; e5[i] = __nv_fp8_e5m2(in[i]).__x;
  }
}"""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = np.concatenate([values[np.isfinite(values)], np.float32([0, -0.0, 65504, 65520])])
    small = rng.standard_normal(100_000).astype(np.float32) * 10
    values = np.concatenate([values, small])
    count = len(values)
    outputs = [np.zeros(count, t) for t in ("uint16", "uint16", "float32", "uint8", "uint8")]
    with tempfile.TemporaryDirectory() as scratch:
        file, library = Path(scratch) / "c.cpp", Path(scratch) / "c.so"
        file.write_text(code)
        command = (find_compiler(), "-O2", "-std=c++17", "-shared", "-fPIC", "-w")
        subprocess.run((*command, "-I", str(DEVICE), str(file), "-o", str(library)), check=True)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (values, *outputs)]
        ctypes.CDLL(str(library)).convert(*pointers, count)
    half, bfloat, back, e4m3, e5m2 = outputs
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half, values.astype("float16").view("uint16"))
        np.testing.assert_array_equal(back, values.astype("float16").astype("float32"))
    np.testing.assert_array_equal(bfloat, values.astype(ml_dtypes.bfloat16).view("uint16"))
    formats = ((e4m3, ml_dtypes.float8_e4m3fn, 448), (e5m2, ml_dtypes.float8_e5m2, 57344))
    for encoded, dtype, largest in formats:
        inside = np.abs(values) <= largest
        np.testing.assert_array_equal(encoded[inside], values[inside].astype(dtype).view("uint8"))
        saturated = encoded[~inside].view(dtype).astype("float32")
        np.testing.assert_array_equal(saturated, np.sign(values[~inside]) * largest)
