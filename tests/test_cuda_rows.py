"""cuda.row and cuda.generic: norms, softmax and reductions on the emulated device, and declines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuda_kernels import A100, H100, compiled, cubin, random_inputs, run, schedule_with
from tvm import relax, tirx
from tvm.relax import op
from tvmfuse.schedules.base import ScheduleRule
from tvmfuse.schedules.cuda.generic import GenericRule
from tvmfuse.schedules.cuda.machine import Machine, arch_number
from tvmfuse.schedules.cuda.row import RowRule
from tvmfuse.schedules.cuda.verify import one_kernel, shared_bytes
from workloads import lowered

ROW: ScheduleRule = RowRule()
EPSILON = 1e-5
TOLERANCE = {"float32": 2e-5, "float16": 4e-3}


def emitted(expr: relax.Expr) -> relax.Var:
    return relax.BlockBuilder.current().emit(expr)


def normalized(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def layer_norm(shape: tuple[int | tirx.Var, ...], dtype: str = "float32") -> tirx.PrimFunc:
    width = ((shape[-1],), dtype)
    return lowered(
        {"x": (shape, dtype), "g": width, "b": width},
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1], epsilon=EPSILON),
    )


def check(actual: np.ndarray, expected: np.ndarray, dtype: str = "float32") -> None:
    tolerance = TOLERANCE[dtype]
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.astype("float64"), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_layer_norm(dtype: str) -> None:
    func = layer_norm((1, 7, 384), dtype)
    inputs = random_inputs(func, 3)
    (actual,), session = run(schedule_with(ROW, func), inputs)
    x, g, b = (array.astype("float64") for array in inputs)
    check(actual, normalized(x) * g + b, dtype)
    assert session.findings == ()
    assert len(session.launches) == 1


@pytest.mark.parametrize(("width", "shared"), [(256, 0), (250, 250 * 4)])
def test_both_results_of_a_sum_and_its_norm(width: int, shared: int) -> None:
    """A row that divides into vectors stays in registers, any other in shared memory."""

    def body(x: relax.Var, r: relax.Var, g: relax.Var) -> tuple[relax.Expr, ...]:
        total = emitted(op.add(x, r))
        return total, op.nn.rms_norm(total, g, axes=[-1], epsilon=EPSILON)

    shape = ((5, width), "float32")
    func = lowered({"x": shape, "r": shape, "g": ((width,), "float32")}, body)
    inputs = random_inputs(func, 3)
    scheduled = schedule_with(ROW, func)
    (total, norm), session = run(scheduled, inputs)
    x, r, g = (array.astype("float64") for array in inputs)
    check(total, x + r)
    mean = ((x + r) ** 2).mean(-1, keepdims=True)
    check(norm, (x + r) / np.sqrt(mean + EPSILON) * g)
    assert session.findings == ()
    assert shared_bytes(scheduled.func) == shared


def test_a_row_in_registers_is_loaded_once_in_vectors() -> None:
    func = layer_norm((4, 768))
    _, source = compiled(schedule_with(ROW, func))
    assert source.count("*(float4*)(x_ptr") == 6  # 768 elements = 6 vectors x 32 lanes
    assert "__syncthreads" not in source


def test_a_row_whose_first_element_every_lane_needs_is_shared() -> None:
    def body(x: relax.Var, r: relax.Var) -> relax.Expr:
        total = emitted(op.add(x, r))
        first = op.strided_slice(total, [1], [0], [1])
        return op.add(op.subtract(total, first), op.mean(total, axis=[1], keepdims=True))

    func = lowered({"x": ((3, 128), "float32"), "r": ((3, 128), "float32")}, body)
    x, r = random_inputs(func, 2)
    scheduled = schedule_with(ROW, func)
    (actual,), session = run(scheduled, [x, r])
    total = x.astype("float64") + r
    check(actual, total - total[:, :1] + total.mean(1, keepdims=True))
    assert session.findings == ()


def test_softmax_with_scale_and_mask_keeps_the_powers() -> None:
    def body(x: relax.Var, mask: relax.Var) -> relax.Expr:
        return op.nn.softmax(op.add(op.multiply(x, relax.const(0.125, "float32")), mask), -1)

    func = lowered({"x": ((2, 3, 8, 70), "float32"), "m": ((2, 1, 1, 70), "float32")}, body)
    x, mask = random_inputs(func, 2)
    scheduled = schedule_with(ROW, func)
    (actual,), session = run(scheduled, [x, mask])
    check(actual, softmax(x.astype("float64") * 0.125 + mask))
    assert session.findings == ()
    _, source = compiled(scheduled)
    assert source.count("expf(") == 1, "the powers are computed more than once"


def test_softmax_over_channels_has_coalesced_columns() -> None:
    func = lowered({"x": ((2, 21, 5, 33), "float32")}, lambda x: op.nn.softmax(x, 1))
    (x,) = random_inputs(func, 1)
    (actual,), session = run(schedule_with(ROW, func), [x])
    check(actual, softmax(x.astype("float64"), 1))
    assert session.findings == ()


def test_log_softmax_of_a_long_row() -> None:
    func = lowered({"x": ((3, 1000), "float32")}, lambda x: op.nn.log_softmax(x, -1))
    (x,) = random_inputs(func, 1)
    (actual,), session = run(schedule_with(ROW, func, A100), [x], A100)
    check(actual, np.log(softmax(x.astype("float64"))))
    assert session.findings == ()


@pytest.mark.parametrize("axis", [[0], [1], [2], [1, 2], [0, 1, 2]])
def test_sum_over_any_axes(axis: list[int]) -> None:
    func = lowered({"x": ((3, 40, 33), "float32")}, lambda x: op.sum(x, axis=axis))
    (x,) = random_inputs(func, 1)
    (actual,), session = run(schedule_with(ROW, func), [x])
    check(actual, x.astype("float64").sum(tuple(axis)))
    assert session.findings == ()


def test_half_sums_accumulate_in_float32() -> None:
    func = lowered({"x": ((2, 4096), "float16")}, lambda x: op.sum(x, axis=1))
    x = np.ones((2, 4096), "float16")  # in float16 the running sum would stop at 2048
    (actual,), session = run(schedule_with(ROW, func), [x])
    np.testing.assert_array_equal(actual, [4096, 4096])
    assert session.findings == ()


def test_narrow_integers_reduce_without_a_race() -> None:
    func = lowered({"x": ((4, 64), "int8")}, lambda x: op.max(x, axis=1))
    x = np.random.default_rng(0).integers(-128, 128, (4, 64)).astype("int8")
    (actual,), session = run(schedule_with(ROW, func), [x])
    np.testing.assert_array_equal(actual, x.max(1))
    assert session.findings == ()


@pytest.mark.parametrize("rows", [1, 13])
def test_symbolic_row_count(rows: int) -> None:
    count = tirx.Var("count", "int64")
    func = lowered({"x": ((count, 48), "float32")}, lambda x: op.nn.softmax(x, -1))
    x = np.random.default_rng(1).standard_normal((rows, 48)).astype("float32")
    (actual,), session = run(schedule_with(ROW, func), [x])
    check(actual, softmax(x.astype("float64")))
    assert session.findings == ()


def test_dependent_reductions_over_unlike_axes_are_one_row() -> None:
    def body(x: relax.Var) -> relax.Expr:
        mean = emitted(op.mean(x, axis=[1]))
        return op.divide(mean, op.sqrt(op.sum(op.multiply(mean, mean), axis=[1], keepdims=True)))

    func = lowered({"x": ((2, 16, 96), "float32")}, body)
    (x,) = random_inputs(func, 1)
    (actual,), session = run(schedule_with(ROW, func), [x])
    mean = x.astype("float64").mean(1)
    check(actual, mean / np.sqrt((mean**2).sum(1, keepdims=True)))
    assert session.findings == ()


def test_generic_takes_what_has_no_common_row() -> None:
    def body(x: relax.Var) -> tuple[relax.Expr, ...]:
        return op.sum(x, axis=[0]), op.sum(x, axis=[1])

    func = lowered({"x": ((24, 40), "float32")}, body)
    assert "unlike rows" in str(ROW.check(func, H100))
    (x,) = random_inputs(func, 1)
    (columns, rows), session = run(schedule_with(GenericRule(), func), [x])
    check(columns, x.astype("float64").sum(0))
    check(rows, x.astype("float64").sum(1))
    assert session.findings == ()


def test_declines() -> None:
    add = lowered({"x": ((4, 8), "float32")}, lambda x: op.add(x, x))
    assert ROW.check(add, H100) == "the group has no reduction"
    shapes = {"a": ((8, 16), "float32"), "b": ((16, 8), "float32")}
    product = lowered(shapes, lambda a, b: op.matmul(a, b))
    assert str(ROW.check(product, H100)).endswith(
        "is a contraction: a row would read a whole operand"
    )
    best = lowered({"x": ((4, 8), "float32")}, lambda x: op.argmax(x, axis=1))
    assert str(ROW.check(best, H100)).endswith("is not one store")
    assert str(GenericRule().check(best, H100)).count("is not one store")


def test_verify_gives_the_reason() -> None:
    func = layer_norm((1, 4, 64))
    assert "each would be a kernel of its own" in str(one_kernel(func))
    single = lowered({"x": ((4, 8), "float32")}, lambda x: op.add(x, x))
    assert one_kernel(single) == "the outermost loop is not bound to blockIdx"
    scheduled = schedule_with(ROW, layer_norm((1, 4, 384)))
    small = Machine(90, 32, 16, 49152, 65536, 132)
    assert one_kernel(scheduled.func, small) == (
        "the kernel has 32 threads per block; the limit is 16"
    )
    _, source = compiled(scheduled)
    assert one_kernel(source + source.replace("main_kernel", "other")) == (
        "the source defines 2 kernels; expected one"
    )


def test_machine_of_a_target() -> None:
    assert arch_number("sm_90a") == 90
    assert Machine.of(H100).shared_limit == 227 * 1024
    assert Machine.of(A100).shared_limit == 163 * 1024
    with pytest.raises(ValueError, match="expected an arch such as"):
        arch_number("gfx90a")


def test_nvcc_accepts_it(tmp_path: Path) -> None:
    _, source = compiled(schedule_with(ROW, layer_norm((1, 64, 384), "float16")))
    cubin(source, tmp_path)
