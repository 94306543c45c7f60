"""llvm.conv: numbers against float64, declines, and the rule's properties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.target import Target
from tvmfuse.schedules.analysis import blocks
from tvmfuse.schedules.llvm.conv import ConvRule
from tvmfuse.schedules.llvm.conv_structure import Window, find_window
from tvmfuse.schedules.llvm.conv_tile import lane_choices, plan_convolution, vector_lanes
from tvmfuse.schedules.llvm.depthwise import DepthwiseRule
from tvmfuse.schedules.llvm.machine import machine_of
from window_workloads import (
    TARGET,
    Image,
    close,
    constant,
    conv2d,
    execute,
    gated,
    inputs_of,
    plain,
    reference,
    run,
)
from workloads import lowered


@pytest.mark.parametrize(
    ("image", "weight", "options"),
    [
        ((1, 12, 12, 3), (3, 3, 3, 16), {"stride": 2, "padding": 1}),
        ((1, 8, 10, 16), (1, 1, 16, 48), {}),
        ((2, 5, 5, 24), (1, 1, 24, 18), {}),
        ((1, 7, 7, 8), (3, 3, 8, 42), {"padding": 1}),
        ((1, 13, 13, 5), (3, 3, 5, 37), {"padding": 1}),
        ((1, 31, 37, 4), (3, 3, 4, 16), {"padding": 1}),
        ((1, 1, 1, 40), (1, 1, 40, 12), {}),
        ((1, 9, 9, 16), (3, 3, 16, 1), {"padding": 1}),
        ((2, 6, 10, 24), (3, 3, 24, 2), {"padding": 1, "stride": 2}),
        ((1, 13, 13, 32), (1, 1, 32, 3), {}),
        ((1, 6, 6, 7), (3, 3, 7, 3), {}),
        ((1, 6, 6, 33), (1, 1, 33, 4), {}),
        ((1, 14, 14, 8), (3, 3, 8, 8), {"padding": 2, "dilation": 2}),
        ((1, 16, 16, 3), (7, 7, 3, 32), {"padding": 3, "stride": 2}),
        ((1, 10, 10, 32), (3, 3, 8, 64), {"padding": 1, "groups": 4}),
        ((1, 56, 56, 16), (3, 3, 16, 32), {"padding": 1}),
    ],
)
def test_dense_and_grouped(image: Image, weight: Image, options: dict[str, int]) -> None:
    func = plain(image, weight, **options)
    x, w, b = inputs_of(func)
    (actual,) = run(ConvRule(), func, [x, w, b])
    close(actual, np.maximum(reference(x, w, **options) + b, 0), w[..., 0].size)


@pytest.mark.parametrize(("taps", "groups"), [(1, 1), (3, 1), (3, 4), (5, 32)])
def test_producer_and_epilogue(taps: int, groups: int) -> None:
    func, expected = gated(taps, groups)
    inputs = inputs_of(func)
    rule = DepthwiseRule() if groups == 32 else ConvRule()
    (actual,) = run(rule, func, inputs)
    np.testing.assert_allclose(actual, expected(*inputs), rtol=2e-4, atol=2e-4)


def test_several_outputs_before_and_after() -> None:
    """An input of the convolution and its result before the ReLU leave the group too."""
    shapes = {"x": ((1, 8, 8, 16), "float32"), "w": ((3, 3, 16, 32), "float32")}

    def body(x, w):  # type: ignore[no-untyped-def]
        emit = relax.BlockBuilder.current().emit  # an expression used twice would be made twice
        scaled = emit(relax.op.multiply(x, constant(0.5)))
        product = emit(conv2d(scaled, w, padding=1))
        return scaled, product, relax.op.nn.relu(product)

    func = lowered(shapes, body)
    x, w = inputs_of(func, outputs=3)
    scaled, product, rectified = run(ConvRule(), func, [x, w], outputs=3)
    exact = reference(x * 0.5, w, padding=1)
    np.testing.assert_array_equal(scaled, x * np.float32(0.5))
    close(product, exact, 144)
    close(rectified, np.maximum(exact, 0), 144)


def test_weight_computed_in_the_group() -> None:
    shapes = {"x": ((1, 8, 8, 16), "float32"), "w": ((32, 16, 3, 3), "float32")}

    def body(x, w):  # type: ignore[no-untyped-def]
        scaled = relax.op.multiply(w, constant(2.0))
        return conv2d(x, relax.op.permute_dims(scaled, axes=[2, 3, 1, 0]), padding=1)

    func = lowered(shapes, body)
    x, w = inputs_of(func)
    (actual,) = run(ConvRule(), func, [x, w])
    close(actual, reference(x, 2 * w.transpose(2, 3, 1, 0), padding=1), 144)


@pytest.mark.parametrize("cpu", ["haswell", "nehalem"])
def test_narrower_vectors(cpu: str) -> None:
    """Eight and four lanes, sixteen registers; the code still runs on this machine."""
    target = Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2})
    func = plain((1, 14, 14, 16), (3, 3, 16, 24), padding=1)
    machine = machine_of(target)
    plan = plan_convolution(window_of(func), machine, staged=True)
    assert plan.lanes <= machine.lanes < 16
    assert (plan.rows * plan.columns + 1) * plan.vectors < machine.vector_registers == 16
    x, w, b = inputs_of(func)
    (actual,) = execute(ConvRule().schedule(func, target, False).mod["main"], func, [x, w, b], 1)
    close(actual, np.maximum(reference(x, w, padding=1) + b, 0), 144)


def test_half_precision_weights_and_images_accumulate_in_float32() -> None:
    shapes = {"x": ((1, 8, 8, 16), "float16"), "w": ((3, 3, 16, 32), "float16")}
    func = lowered(shapes, lambda x, w: conv2d(x, w, padding=1, out_dtype="float32"))
    x, w = inputs_of(func)
    (actual,) = run(ConvRule(), func, [x, w])
    close(actual, reference(x, w, padding=1), 144)


def test_moved_epilogue_shorter_than_a_vector() -> None:
    shapes = {"x": ((1, 6, 2, 8), "float32"), "w": ((1, 1, 8, 3), "float32")}
    func = lowered(shapes, lambda x, w: relax.op.permute_dims(conv2d(x, w), axes=[0, 1, 3, 2]))
    x, w = inputs_of(func)
    (actual,) = run(ConvRule(), func, [x, w])
    close(actual, reference(x, w).transpose(0, 1, 3, 2), 8)


def depth_to_space(y: relax.Expr) -> relax.Expr:
    """(1, 10, 8, 32) to (1, 20, 16, 8): the end of a transposed convolution."""
    y = relax.op.reshape(y, (1, 10, 8, 2, 2, 8))
    y = relax.op.permute_dims(y, axes=[0, 1, 3, 2, 4, 5])
    return relax.op.nn.relu(relax.op.reshape(y, (1, 20, 16, 8)))


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (
            lambda y: relax.op.permute_dims(relax.op.nn.relu(y), axes=[0, 3, 1, 2]),
            lambda y: np.maximum(y, 0).transpose(0, 3, 1, 2),
        ),
        (lambda y: relax.op.reshape(y, (1, 80, 32)), lambda y: y.reshape(1, 80, 32)),
        (
            depth_to_space,
            lambda y: (
                np.maximum(y, 0)
                .reshape(1, 10, 8, 2, 2, 8)
                .transpose(0, 1, 3, 2, 4, 5)
                .reshape(1, 20, 16, 8)
            ),
        ),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_epilogue_that_moves_elements(
    move: Callable[[relax.Expr], relax.Expr],
    expected: Callable[[np.ndarray], np.ndarray],
    groups: int,
) -> None:
    shapes = {"x": ((1, 10, 8, 16), "float32"), "w": ((3, 3, 16 // groups, 32), "float32")}
    func = lowered(shapes, lambda x, w: move(conv2d(x, w, padding=1, groups=groups)))
    x, w = inputs_of(func)
    (actual,) = run(ConvRule(), func, [x, w])
    close(actual, expected(reference(x, w, padding=1, groups=groups)), 144 // groups)


def channels_first() -> tirx.PrimFunc:
    shapes = {"x": ((1, 16, 8, 8), "float32"), "w": ((32, 16, 3, 3), "float32")}
    return lowered(shapes, lambda x, w: relax.op.nn.conv2d(x, w, padding=1))


def softmaxed() -> tirx.PrimFunc:
    return lowered({"x": ((8, 16), "float32")}, lambda x: relax.op.nn.softmax(x, axis=-1))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            channels_first,
            "the weight is not laid out as (row tap, column tap, input, output channel)",
        ),
        (softmaxed, "the group has 2 reductions; a window reduction has one"),
    ],
)
def test_declines_with_the_reason(make: Callable[[], tirx.PrimFunc], reason: str) -> None:
    func = make()
    before = func.script()
    assert ConvRule().check(func, TARGET) == reason
    assert ConvRule().apply(func, TARGET) is None
    assert func.script() == before


@pytest.mark.parametrize("groups", [1, 32])
def test_schedule_is_deterministic_and_leaves_its_input(groups: int) -> None:
    func, _ = gated(3, groups)
    rule = ConvRule() if groups == 1 else DepthwiseRule()
    before = func.script()
    first = rule.schedule(func, TARGET, tunable=False).mod["main"]
    second = rule.schedule(func, TARGET, tunable=False).mod["main"]
    assert tvm_ffi.structural_equal(first, second)
    assert func.script() == before


def loops(func: tirx.PrimFunc, kind: tirx.ForKind) -> list[tirx.For]:
    """Every loop of one kind."""
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, found.append))
    return [loop for loop in found if loop.kind == kind]


def test_one_parallel_region_and_the_tile_in_local_memory() -> None:
    func = plain((1, 40, 40, 32), (3, 3, 32, 32), padding=1)
    scheduled = ConvRule().schedule(func, TARGET, tunable=False).mod["main"]
    assert len(loops(scheduled, tirx.ForKind.PARALLEL)) == 1
    root = scheduled.body.block
    scopes = [str(buffer.scope()) for buffer in root.alloc_buffers]
    assert scopes.count("local") == 1
    assert len(root.alloc_buffers) == 2  # the padded rows and the tile: the epilogue is fused


def test_small_work_stays_on_one_thread() -> None:
    func = plain((1, 1, 1, 96), (1, 1, 96, 24))
    scheduled = ConvRule().schedule(func, TARGET, tunable=False).mod["main"]
    assert not loops(scheduled, tirx.ForKind.PARALLEL)


def window_of(func: tirx.PrimFunc) -> Window:
    """The window reduction of ``func``."""
    window = find_window(blocks(s_tir.Schedule(func)))
    assert isinstance(window, Window)
    return window


@pytest.mark.parametrize(
    ("image", "weight"),
    [((1, 56, 56, 64), (3, 3, 64, 64)), ((1, 20, 20, 96), (1, 1, 96, 18))],
)
def test_register_tile_fits_and_divides(image: Image, weight: Image) -> None:
    window = window_of(plain(image, weight, padding=weight[0] // 2))
    plan = plan_convolution(window, machine_of(TARGET), staged=True)
    pixels = plan.rows * plan.columns
    assert (pixels + 1) * plan.vectors + 1 <= 32
    assert window.width % plan.columns == 0
    assert weight[3] % (plan.vectors * plan.lanes) == 0
    assert pixels * plan.vectors >= 8


def test_awkward_channel_counts_keep_their_vectors() -> None:
    machine = machine_of(TARGET)
    assert [vector_lanes(count, machine) for count in (16, 24, 12, 42, 37)] == [16, 8, 12, 14, 37]
    assert lane_choices(24, machine)[-1] == 12


@pytest.mark.parametrize("groups", [1, 32])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sampled_schedules_are_correct(groups: int, seed: int) -> None:
    func, expected = gated(3, groups)
    rule = ConvRule() if groups == 1 else DepthwiseRule()
    trace = rule.schedule(func, TARGET, tunable=True).trace
    sampled = s_tir.Schedule(func, seed=seed)
    assert trace.decisions
    s_tir.schedule.Trace(trace.insts, {}).apply_to_schedule(sampled, remove_postproc=False)
    inputs = inputs_of(func)
    actual = execute(sampled.mod["main"], func, inputs, 1)[0]
    np.testing.assert_allclose(actual, expected(*inputs), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("groups", [1, 32])
def test_first_sample_is_the_fixed_schedule(groups: int) -> None:
    func, _ = gated(3, groups)
    rule = ConvRule() if groups == 1 else DepthwiseRule()
    fixed, sampled = (rule.schedule(func, TARGET, tunable=choice).mod for choice in (False, True))
    assert tvm_ffi.structural_equal(fixed["main"], sampled["main"])
