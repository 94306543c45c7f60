"""The NHWC layout pass: what it makes, what it leaves alone, and the numbers."""

from __future__ import annotations

import importlib.util
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tvmfuse.graph import build_graph
from tvmfuse.options import Options
from tvmfuse.passes.layout import convert_layout
from tvmfuse.passes.prepare import prepare
from tvmfuse.passes.rewriter import constant, make_constant

RANDOM = np.random.default_rng(7)
# Code of one run is not worth optimising.
TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})
X = (2, 6, 9, 7)
Build = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def module(build: Build, *shapes: tuple, dtype: str = "float32") -> tvm.IRModule:
    """A module whose ``main`` binds each call of ``build`` in one dataflow block."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(build(builder, *params))
        builder.emit_func_output(result)
    return builder.get()


def run(mod: tvm.IRModule, *inputs: np.ndarray) -> list[np.ndarray]:
    machine = relax.VirtualMachine(tvm.compile(mod, TARGET), tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(array) for array in inputs])
    return (
        [item.numpy() for item in result] if isinstance(result, tvm_ffi.Array) else [result.numpy()]
    )


def operators(mod: tvm.IRModule) -> list[str]:
    return [node.operator.removeprefix("relax.") for node in build_graph(mod).nodes]


def conv_reference(
    x: np.ndarray, w: np.ndarray, stride: int = 1, padding: int = 0, groups: int = 1
) -> np.ndarray:
    """NCHW convolution with an OIHW weight in float64."""
    x, w = x.astype("float64"), w.astype("float64")
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride]
    parts = [
        np.einsum("nchwij,ocij->nohw", data, kernel)
        for data, kernel in zip(
            np.split(windows, groups, axis=1), np.split(w, groups, axis=0), strict=True
        )
    ]
    return np.concatenate(parts, axis=1)


def conv(x: relax.Expr, w: np.ndarray, **attrs: object) -> relax.Expr:
    return relax.op.nn.conv2d(x, make_constant(w), **attrs)


# -- structure ---------------------------------------------------------------------------------


def test_conv_bias_relu_becomes_one_nhwc_region():
    w, b = weights(4, 6, 3, 3), weights(1, 4, 1, 1)

    def build(builder, x):
        y = builder.emit(conv(x, w, padding=1))
        y = builder.emit(relax.op.add(y, make_constant(b)))
        return relax.op.nn.relu(y)

    before = module(build, X)
    after = convert_layout(before)
    assert operators(after) == ["permute_dims", "nn.conv2d", "add", "nn.relu", "permute_dims"]
    nodes = build_graph(after).nodes
    attrs = nodes[1].value.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    assert layouts == ("NHWC", "HWIO", "NHWC")
    np.testing.assert_array_equal(constant(nodes[1].value.args[1]), w.transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(constant(nodes[2].value.args[1]), b.transpose(0, 2, 3, 1))
    assert tvm_ffi.structural_equal(after["main"].ret_ty, before["main"].ret_ty)
    relax.analysis.well_formed(after)


def test_region_of_many_convolutions_has_two_permutes():
    w = weights(6, 6, 3, 3)

    def build(builder, x):
        skip = y = builder.emit(conv(x, w, padding=1))
        for _ in range(3):
            y = builder.emit(relax.op.nn.relu(builder.emit(conv(y, w, padding=1))))
        return relax.op.add(skip, y)

    found = Counter(operators(convert_layout(module(build, X))))
    assert found == {"nn.conv2d": 4, "nn.relu": 3, "add": 1, "permute_dims": 2}


@pytest.mark.parametrize("shape", [(2, 1, 9, 7), (2, 6, 1, 1)])
def test_permute_that_moves_nothing_is_a_reshape(shape):
    w = weights(1, shape[1], 1, 1)
    after = convert_layout(module(lambda builder, x: conv(x, w), shape))
    assert operators(after) == ["reshape", "nn.conv2d", "reshape"]


def test_input_module_stays_and_second_run_changes_nothing():
    w = weights(4, 6, 3, 3)
    before = module(lambda builder, x: relax.op.nn.relu(builder.emit(conv(x, w))), X)
    untouched = before.script()
    once = convert_layout(before)
    assert before.script() == untouched
    assert tvm_ffi.structural_equal(convert_layout(once), once)
    assert tvm_ffi.structural_equal(convert_layout(before), once)


def test_functions_without_convertible_convolution_are_the_same_objects():
    nhwc = weights(3, 3, 6, 4)
    mods = [
        module(lambda builder, x: relax.op.nn.relu(x), X),
        module(lambda builder, x, w: relax.op.nn.conv2d(x, w), X, (4, 6, 3, 3)),
        module(
            lambda builder, x: conv(x, nhwc, data_layout="NHWC", kernel_layout="HWIO"),
            (2, 9, 7, 6),
        ),
    ]
    for mod in mods:
        assert convert_layout(mod)["main"].same_as(mod["main"])


def test_function_attributes_and_symbolic_batch_stay():
    w = weights(4, 6, 3, 3)
    batch = tvm.tirx.Var("n", "int64")
    before = module(lambda builder, x: conv(x, w), (batch, 6, 9, 7))
    before["main"] = before["main"].with_attr("num_input", 1)
    after = convert_layout(before)
    assert int(after["main"].attrs["num_input"]) == 1
    assert operators(after) == ["permute_dims", "nn.conv2d", "permute_dims"]
    x = weights(3, 6, 9, 7)
    np.testing.assert_allclose(run(after, x)[0], conv_reference(x, w), rtol=1e-4, atol=1e-4)


def test_value_needed_in_both_layouts_is_permuted_once():
    w = weights(6, 6, 1, 1)

    def build(builder, x):
        y = builder.emit(conv(x, w))
        flat = [builder.emit(relax.op.reshape(y, (2, 6, 63))) for _ in range(2)]
        z = builder.emit(conv(y, w))
        total = builder.emit(relax.op.add(*flat))
        return relax.op.add(builder.emit(relax.op.reshape(total, X)), z)

    after = convert_layout(module(build, X))
    # x in, y out to the reshapes; their sum back in, the result out.
    assert Counter(operators(after))["permute_dims"] == 4
    x = weights(*X)
    y = conv_reference(x, w)
    expected = 2 * y + conv_reference(y, w)
    np.testing.assert_allclose(run(after, x)[0], expected, rtol=1e-4, atol=1e-4)


def test_transposes_of_the_model_cancel():
    w = weights(6, 6, 1, 1)

    def build(builder, x):  # NHWC in and out, as TensorFlow exporters wrap each convolution
        y = builder.emit(relax.op.permute_dims(x, [0, 3, 1, 2]))
        y = builder.emit(conv(y, w))
        y = builder.emit(relax.op.permute_dims(y, [0, 2, 3, 1]))
        return relax.op.nn.relu(y)

    after = convert_layout(module(build, (2, 9, 7, 6)))
    assert operators(after) == ["nn.conv2d", "nn.relu"]


def test_flattened_image_is_a_view_of_the_nhwc_value():
    """Convolution, tokens, something on the tokens, image again, convolution."""
    w = weights(6, 6, 1, 1)

    def build(builder, x):
        y = builder.emit(conv(x, w))
        y = builder.emit(relax.op.reshape(y, (2, 6, 63)))
        y = builder.emit(relax.op.permute_dims(y, [0, 2, 1]))
        y = builder.emit(relax.op.nn.softmax(y))
        y = builder.emit(relax.op.permute_dims(y, [0, 2, 1]))
        y = builder.emit(relax.op.reshape(y, X))
        return conv(y, w)

    after = prepare(module(build, X), Options())
    assert operators(after) == [
        "permute_dims",
        "nn.conv2d",
        "reshape",
        "nn.softmax",
        "reshape",
        "nn.conv2d",
        "permute_dims",
    ]
    x = weights(*X)
    expected = conv_reference(softmax(conv_reference(x, w), 1), w)
    # The softmax runs over the channels: the last axis of the tokens.
    np.testing.assert_allclose(run(after, x)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 2, 3, 63), [0, 2, 3, 1]), ((2, 54, 7), [0, 2, 1]), ((2, 6, 63), [0, 1, 2])],
    ids=["channels split", "channels merged with rows", "kept channels first"],
)
def test_view_that_mixes_channels_keeps_its_transposes(shape, axes):
    w = weights(6, 6, 1, 1)

    def build(builder, x):
        y = builder.emit(relax.op.reshape(builder.emit(conv(x, w)), shape))
        return relax.op.exp(builder.emit(relax.op.permute_dims(y, axes)))

    after = prepare(module(build, X), Options())
    x = weights(*X)
    expected = np.exp(conv_reference(x, w).reshape(shape).transpose(axes))
    np.testing.assert_allclose(run(after, x)[0], expected, rtol=1e-3, atol=1e-3)
    assert Counter(operators(after))["permute_dims"] == (2 if axes == [0, 1, 2] else 3)


def test_several_blocks_and_values_that_leave_them():
    w = weights(6, 6, 1, 1)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(X, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(conv(x, w))
            left = builder.emit_output(relax.op.nn.relu(y))
        seen = builder.emit(relax.op.negative(left))  # outside any dataflow block
        with builder.dataflow():
            z = builder.emit(conv(left, w))
            result = builder.emit_output(relax.op.add(z, seen))
        builder.emit_func_output(relax.Tuple([result, left]))
    before = builder.get()
    after = convert_layout(before)
    relax.analysis.well_formed(after)
    value = weights(*X)
    first = np.maximum(conv_reference(value, w), 0)
    for found, expected in zip(
        run(after, value), [conv_reference(first, w) - first, first], strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_result_that_is_read_again_stays_channels_last():
    w = weights(6, 6, 1, 1)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(X, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit_output(conv(x, w))
            second = builder.emit_output(conv(first, w))
        builder.emit_func_output(relax.Tuple([first, second]))
    after = convert_layout(builder.get())
    assert Counter(operators(after))["permute_dims"] == 3  # in, and two out
    value = weights(*X)
    expected = conv_reference(value, w)
    for found, part in zip(run(after, value), [expected, conv_reference(expected, w)], strict=True):
        np.testing.assert_allclose(found, part, rtol=1e-4, atol=1e-4)


def test_tensor_of_unknown_shape_stays():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(ndim=4, dtype="float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(conv(x, weights(6, 6, 1, 1)))
        builder.emit_func_output(result)
    assert operators(convert_layout(builder.get())) == ["nn.conv2d"]


def test_time_is_linear():
    w = weights(4, 4, 1, 1)

    def chain(length):
        def build(builder, x):
            for _ in range(length):
                x = builder.emit(relax.op.nn.relu(builder.emit(conv(x, w))))
            return x

        mod = module(build, (1, 4, 8, 8))
        start = time.perf_counter()
        convert_layout(mod)
        return time.perf_counter() - start

    chain(50)
    short, long = min(chain(50) for _ in range(3)), chain(400)
    assert long < 8 * short * 3, (short, long)


# -- numbers -------------------------------------------------------------------------------------

W = weights(8, 6, 3, 3)
C = weights(1, 8, 1, 1)
ROW = weights(7, 1)
GAMMA, BETA = weights(8), weights(8)
MEAN, VARIANCE = weights(8), np.abs(weights(8)) + 0.5
SLOPE = weights(8)


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def pool(x, reduce):
    return reduce(
        np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))[:, :, ::2, ::2], (4, 5)
    )


def normalised(y):
    scale = GAMMA / np.sqrt(VARIANCE + 1e-5)
    return y * scale.reshape(1, 8, 1, 1) + (BETA - MEAN * scale).reshape(1, 8, 1, 1)


def affine(y):
    return y * GAMMA.reshape(1, 8, 1, 1) + BETA.reshape(1, 8, 1, 1)


def deviation(y, axes):
    return np.sqrt(y.var(axes, keepdims=True) + 1e-5)


def grouped(y):
    rows = y.reshape(2, 4, -1)
    return ((rows - rows.mean(2, keepdims=True)) / deviation(rows, 2)).reshape(y.shape)


op, c = relax.op, make_constant
# name: (the operators on y = conv(x, W), the same in NumPy, permutes at most)
CASES = {
    "add channel constant": (lambda y: op.add(y, c(C)), lambda y: y + C, 2),
    "multiply scalar": (lambda y: op.multiply(c(np.float32(3)), y), lambda y: 3 * y, 2),
    "one-element constant": (lambda y: op.add(y, c(C[:, :1])), lambda y: y + C[:, :1], 2),
    "lower-rank constant": (lambda y: op.add(y, c(ROW)), lambda y: y + ROW, 2),
    "clip": (lambda y: op.clip(y, -1.0, 2.0), lambda y: np.clip(y, -1, 2), 2),
    "where": (
        lambda y: op.where(op.greater(y, c(C)), y, c(np.float32(-2))),
        lambda y: np.where(y > C, y, -2),
        2,
    ),
    "cast": (lambda y: op.astype(y, "float64"), lambda y: y, 2),
    "leaky relu": (lambda y: op.nn.leakyrelu(y, 0.1), lambda y: np.where(y > 0, y, y * 0.1), 2),
    "prelu": (
        lambda y: op.nn.prelu(y, c(SLOPE), 1),
        lambda y: np.where(y > 0, y, y * SLOPE.reshape(1, 8, 1, 1)),
        2,
    ),
    "depthwise": (
        lambda y: conv(y, W8, padding=1, groups=8),
        lambda y: conv_reference(y, W8, padding=1, groups=8),
        2,
    ),
    "depthwise multiplier": (
        lambda y: conv(y, W16, strides=2, groups=8),
        lambda y: conv_reference(y, W16, stride=2, groups=8),
        2,
    ),
    "grouped": (
        lambda y: conv(y, W84, padding=1, groups=2),
        lambda y: conv_reference(y, W84, padding=1, groups=2),
        2,
    ),
    "max pool": (
        lambda y: op.nn.max_pool2d(y, (3, 3), (2, 2)),
        lambda y: pool(y, np.max),
        2,
    ),
    "average pool": (
        lambda y: op.nn.avg_pool2d(y, (3, 3), (2, 2)),
        lambda y: pool(y, np.mean),
        2,
    ),
    "global pool": (
        lambda y: op.nn.adaptive_avg_pool2d(y, (1, 1)),
        lambda y: y.mean((2, 3), keepdims=True),
        1,
    ),
    "mean keepdims": (
        lambda y: op.mean(y, [2, 3], True),
        lambda y: y.mean((2, 3))[:, :, None, None],
        1,
    ),
    "mean": (lambda y: op.mean(y, [-2, -1]), lambda y: y.mean((2, 3)), 1),
    "channel sum": (lambda y: op.sum(y, [1]), lambda y: y.sum(1), 1),
    "row max": (lambda y: op.max(y, [2]), lambda y: y.max(2), 2),
    "whole sum": (lambda y: op.sum(y), lambda y: y.sum(), 1),
    "squeeze-excite": (
        lambda y: op.multiply(y, op.sigmoid(op.mean(y, [2, 3], True))),
        lambda y: y / (1 + np.exp(-y.mean((2, 3), keepdims=True))),
        2,
    ),
    "softmax over channels": (lambda y: op.nn.softmax(y, 1), lambda y: softmax(y, 1), 2),
    "softmax over width": (lambda y: op.nn.softmax(y, -1), lambda y: softmax(y, 3), 2),
    "log softmax": (lambda y: op.nn.log_softmax(y, 2), lambda y: np.log(softmax(y, 2)), 2),
    "concat channels": (
        lambda y: op.concat([y, op.nn.relu(y), y], 1),
        lambda y: np.concatenate([y, np.maximum(y, 0), y], 1),
        2,
    ),
    "concat width": (
        lambda y: op.concat([y, c(WIDE)], 3),
        lambda y: np.concatenate([y, WIDE], 3),
        2,
    ),
    "split": (
        lambda y: op.add(*[op.nn.relu(op.split(y, 2, 1)[0]), op.split(y, 2, 1)[1]]),
        lambda y: np.maximum(y[:, :4], 0) + y[:, 4:],
        2,
    ),
    "slice": (
        lambda y: op.strided_slice(y, [1, 3], [2, 0], [8, 5], [2, 1]),
        lambda y: y[:, 2:8:2, :, :5],
        2,
    ),
    "pad": (
        lambda y: op.nn.pad(y, [0, 0, 1, 0, 2, 1, 0, 3], "constant", 1.5),
        lambda y: np.pad(y, ((0, 0), (1, 0), (2, 1), (0, 3)), constant_values=1.5),
        2,
    ),
    "resize nearest": (
        lambda y: op.image.resize2d(
            y,
            (14, 15),
            layout="NCHW",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ),
        lambda y: y[:, :, np.arange(14) * 7 // 14][:, :, :, np.arange(15) * 5 // 15],
        2,
    ),
    "batch norm": (
        lambda y: op.nn.batch_norm(
            y, c(GAMMA), c(BETA), c(MEAN), c(VARIANCE), axis=1, training=False
        )[0],
        normalised,
        2,
    ),
    "layer norm over channels": (
        lambda y: op.nn.layer_norm(y, c(GAMMA), c(BETA), [1]),
        lambda y: affine((y - y.mean(1, keepdims=True)) / deviation(y, 1)),
        2,
    ),
    "instance norm": (
        lambda y: op.nn.instance_norm(y, c(GAMMA), c(BETA), 1, [2, 3]),
        lambda y: affine((y - y.mean((2, 3), keepdims=True)) / deviation(y, (2, 3))),
        2,
    ),
    "group norm": (
        lambda y: op.nn.group_norm(y, c(GAMMA), c(BETA), 4, 1, [2, 3]),
        lambda y: affine(grouped(y)),
        2,
    ),
    "flatten": (lambda y: op.reshape(y, (2, -1)), lambda y: y.reshape(2, -1), 2),
    "transpose": (
        lambda y: op.permute_dims(y, [0, 3, 1, 2]),
        lambda y: y.transpose(0, 3, 1, 2),
        2,
    ),
}
W8, W16, W84 = weights(8, 1, 3, 3), weights(16, 1, 3, 3), weights(8, 4, 3, 3)
WIDE = weights(2, 8, 7, 3)


@pytest.mark.parametrize("name", CASES)
def test_operator_keeps_its_value(name):
    build, reference, permutes = CASES[name]

    def body(builder, x):
        return builder.normalize(build(builder.emit(conv(x, W))))

    before = prepare(module(body, X), Options(layout=False))
    after = convert_layout(before)
    relax.analysis.well_formed(after)
    assert Counter(operators(after))["permute_dims"] <= permutes
    assert Counter(operators(after))["nn.conv2d"] == Counter(operators(before))["nn.conv2d"]
    x = weights(*X)
    expected = reference(conv_reference(x, W))
    found = run(after, x)[0]
    assert found.shape == expected.shape
    # Products of 54 terms of size about 1 in float32, then at most 72 more.
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_operand_of_lower_rank_that_is_a_variable():
    def build(builder, x, row):
        return relax.op.add(builder.emit(conv(x, W)), row)

    after = convert_layout(module(build, X, (8, 7, 1)))
    x, row = weights(*X), weights(8, 7, 1)
    expected = conv_reference(x, W) + row
    np.testing.assert_allclose(run(after, x, row)[0], expected, rtol=1e-4, atol=1e-4)


def test_split_that_leaves_the_function_is_a_tuple_of_nchw():
    def build(builder, x):
        return relax.op.split(builder.emit(conv(x, W)), [3], 1)

    before = module(build, X)
    after = convert_layout(before)
    assert tvm_ffi.structural_equal(after["main"].ret_ty, before["main"].ret_ty)
    x = weights(*X)
    expected = conv_reference(x, W)
    for found, part in zip(run(after, x), [expected[:, :3], expected[:, 3:]], strict=True):
        np.testing.assert_allclose(found, part, rtol=1e-4, atol=1e-4)


# -- the detector ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def detector():
    """The text detector's module and its ONNX file, both without the sigmoid at the end."""
    onnx, onnxslim = pytest.importorskip("onnx"), pytest.importorskip("onnxslim")
    pytest.importorskip("onnxruntime")
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None:
        pytest.skip("rapidocr_onnxruntime, which has the model, is not installed")
    from tvm.relax.frontend.onnx import from_onnx

    path = Path(spec.origin).parent / "models" / "ch_PP-OCRv4_det_infer.onnx"
    model = onnxslim.slim(str(path), input_shapes=["x:1,3,160,160"])
    last = model.graph.node[-1]
    assert last.op_type == "Sigmoid"
    model.graph.output[0].name = last.input[0]
    model.graph.node.remove(last)
    mod = from_onnx(model, shape_dict={"x": [1, 3, 160, 160]}, keep_params_in_input=False)
    return mod, onnx.ModelProto.SerializeToString(model)


def test_detector_agrees_with_onnx_runtime(detector):
    import onnxruntime

    mod, data = detector
    plain = prepare(mod, Options(layout=False))
    start = time.perf_counter()
    convert_layout(plain)
    assert time.perf_counter() - start < 1.0
    after = prepare(mod, Options())
    found = Counter(operators(after))
    assert found["permute_dims"] == 3  # the input, and the two depth-to-space
    assert found["nn.conv2d"] == 64 and "nn.conv2d_transpose" not in found
    # An image of bright strokes on dark paper, normalised as the model wants it.
    image = np.full((1, 3, 160, 160), -1.8, "float32")
    for row in range(20, 150, 40):
        for column in range(10, 150, 12):
            image[:, :, row : row + 18, column : column + 4] = 2.0
            image[:, :, row : row + 4, column : column + 9] = 2.0
    session = onnxruntime.InferenceSession(data)
    expected = session.run(None, {session.get_inputs()[0].name: image})[0]
    assert np.abs(expected).max() > 1.0
    np.testing.assert_allclose(run(after, image)[0], expected, rtol=1e-4, atol=1e-4)
