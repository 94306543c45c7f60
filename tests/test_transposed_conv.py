"""Transposed convolution as 1x1 convolution and depth-to-space."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tvmfuse.graph import build_graph
from tvmfuse.options import Options
from tvmfuse.passes.prepare import prepare
from tvmfuse.passes.rewriter import make_constant, rewrite_module
from tvmfuse.passes.transposed_conv import depth_to_space

RANDOM = np.random.default_rng(3)
# Code of one run is not worth optimising.
TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def module(weight: np.ndarray | None, shape: tuple, tail: bool = False, **attrs) -> tvm.IRModule:
    """``main(x[, w]) = conv2d_transpose(x, w)``, with bias and relu after it if ``tail``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    params = [x]
    kernel = relax.Var("w", relax.TensorType((6, 4, 2, 2), "float32"))
    if weight is None:
        params.append(kernel)
    else:
        kernel = make_constant(weight)
    with builder.function("main", params):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d_transpose(x, kernel, **attrs))
            if tail:
                y = builder.emit(relax.op.add(y, make_constant(bias_of(y))))
                y = builder.emit(relax.op.nn.relu(y))
            result = builder.emit_output(relax.op.multiply(y, make_constant(np.float32(2.0))))
        builder.emit_func_output(result)
    return builder.get()


def bias_of(y: relax.Expr) -> np.ndarray:
    channels = int(y.ty.shape.values[1])
    return np.linspace(-1, 1, channels, dtype="float32").reshape(1, channels, 1, 1)


def rewritten(mod: tvm.IRModule) -> tvm.IRModule:
    return rewrite_module(mod, (depth_to_space,))


def operators(mod: tvm.IRModule) -> list[str]:
    return [node.operator.removeprefix("relax.") for node in build_graph(mod).nodes]


def run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(mod, TARGET), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy()


def reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Each input pixel times the weight fills a window of its own; float64."""
    tiles = np.einsum("nchw,coij->nohiwj", x.astype("float64"), w.astype("float64"))
    n, o, h, i, wide, j = tiles.shape
    return tiles.reshape(n, o, h * i, wide * j)


@pytest.mark.parametrize(
    ("shape", "outputs", "kernel"),
    [((2, 6, 5, 3), 4, (2, 2)), ((1, 6, 4, 4), 1, (2, 2)), ((1, 3, 3, 2), 5, (3, 2))],
)
def test_value(shape, outputs, kernel):
    w = weights(shape[1], outputs, *kernel)
    before = module(w, shape, strides=kernel)
    text = before.script()
    after = rewritten(before)
    assert before.script() == text
    assert tvm_ffi.structural_equal(after["main"].ret_ty, before["main"].ret_ty)
    relax.analysis.well_formed(after)
    assert operators(after) == [
        "permute_dims",
        "nn.conv2d",
        "reshape",
        "permute_dims",
        "reshape",
        "permute_dims",
        "multiply",
    ]
    x = weights(*shape)
    # Sums of at most 6 products.
    np.testing.assert_allclose(run(after, x), 2 * reference(x, w), rtol=1e-5, atol=1e-5)


def test_region_stays_channels_last_after_it():
    """The bias, the activation and the scale are computed before the last permute."""
    w = weights(6, 4, 2, 2)
    after = prepare(module(w, (1, 6, 5, 3), tail=True, strides=(2, 2)), Options())
    found = operators(after)
    assert found == [
        "permute_dims",
        "nn.conv2d",
        "reshape",
        "permute_dims",
        "reshape",
        "add",
        "nn.relu",
        "multiply",
        "permute_dims",
    ]
    x = weights(1, 6, 5, 3)
    bias = np.linspace(-1, 1, 4).reshape(1, 4, 1, 1)
    expected = 2 * np.maximum(reference(x, w) + bias, 0)
    np.testing.assert_allclose(run(after, x), expected, rtol=1e-5, atol=1e-5)


def test_symbolic_batch():
    w = weights(6, 4, 2, 2)
    batch = tvm.tirx.Var("n", "int64")
    after = rewritten(module(w, (batch, 6, 5, 3), strides=(2, 2)))
    assert "nn.conv2d" in operators(after)
    x = weights(3, 6, 5, 3)
    np.testing.assert_allclose(run(after, x), 2 * reference(x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("weight", "attrs"),
    [
        (weights(6, 4, 3, 3), {"strides": (2, 2)}),  # windows overlap
        (weights(6, 4, 2, 2), {"strides": (3, 3)}),  # windows leave gaps
        (weights(6, 4, 2, 2), {"strides": (2, 2), "padding": (1, 1)}),
        (weights(6, 4, 2, 2), {"strides": (2, 2), "output_padding": (1, 1)}),
        (weights(6, 4, 2, 2), {"strides": (2, 2), "dilation": (2, 2)}),
        (weights(6, 2, 2, 2), {"strides": (2, 2), "groups": 2}),
        (None, {"strides": (2, 2)}),  # the weight is an input
    ],
    ids=["overlap", "gaps", "padding", "output padding", "dilation", "groups", "input weight"],
)
def test_others_stay(weight, attrs):
    before = module(weight, (1, 6, 5, 3), **attrs)
    after = rewritten(before)
    assert operators(after) == ["nn.conv2d_transpose", "multiply"]
    assert tvm_ffi.structural_equal(after, before)
