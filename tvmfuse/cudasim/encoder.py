"""A synthetic transformer encoder: the largest program of ``bench.py``."""

from __future__ import annotations

from typing import Any

import numpy as np


def encoder_module(layers: int = 12, width: int = 384, heads: int = 12, tokens: int = 128) -> Any:
    """Relax module; main takes float32 ``(1, tokens, width)`` and returns the same shape.

    Post-norm layers as in BERT: attention, feed-forward of four times the width with GELU, random
    weights of a fixed seed as constants.
    """
    from tvm import relax
    from tvm.relax import op

    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()

    def constant(array: np.ndarray) -> relax.Expr:
        return relax.const(array.astype("float32"), "float32")

    def linear(value: relax.Expr, rows: int, columns: int) -> relax.Expr:
        weight = constant(rng.standard_normal((rows, columns)) / np.sqrt(rows))
        bias = constant(0.1 * rng.standard_normal(columns))
        return builder.emit(op.add(op.matmul(value, weight), bias))

    def norm(value: relax.Expr) -> relax.Expr:
        scale, shift = constant(np.ones(width)), constant(np.zeros(width))
        return builder.emit(op.nn.layer_norm(value, scale, shift, axes=[-1]))

    def split(value: relax.Expr) -> relax.Expr:
        parts = op.reshape(value, (1, tokens, heads, width // heads))
        return builder.emit(op.permute_dims(parts, [0, 2, 1, 3]))

    def attention(value: relax.Expr) -> relax.Expr:
        query, key, content = (split(linear(value, width, width)) for _ in range(3))
        scores = op.matmul(query, op.permute_dims(key, [0, 1, 3, 2]))
        scale = constant(np.array((width // heads) ** -0.5))
        weights = op.nn.softmax(op.multiply(scores, scale), axis=-1)
        mixed = op.permute_dims(op.matmul(weights, content), [0, 2, 1, 3])
        return linear(op.reshape(mixed, (1, tokens, width)), width, width)

    x = relax.Var("x", relax.TensorType((1, tokens, width), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden: relax.Expr = x
            for _ in range(layers):
                hidden = norm(op.add(hidden, attention(hidden)))
                inner = op.nn.gelu(linear(hidden, width, 4 * width))
                hidden = norm(op.add(hidden, linear(inner, 4 * width, width)))
            result = builder.emit_output(hidden)
        builder.emit_func_output(result)
    return builder.get()


def encoder_flops(layers: int = 12, width: int = 384, tokens: int = 128) -> float:
    """Multiplications and additions of the matmuls of ``encoder_module``."""
    return layers * (24.0 * tokens * width**2 + 4.0 * tokens**2 * width)
