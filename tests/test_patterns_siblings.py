"""Reductions of the same rows in one kernel, the gated MLP's two, and what keeps them apart."""

from __future__ import annotations

from fusion import check_fusion, constant, module
from tvm import relax

from tvmfuse.reasons import Code

op = relax.op
MATMUL, SLICE = "relax.matmul", "relax.strided_slice"


def test_variance_written_by_hand() -> None:
    def body(emit, x):
        centred = emit(op.subtract(x, op.mean(x, axis=-1, keepdims=True)), "centred")
        return op.mean(op.square(centred), axis=-1)

    names = "mean subtract square mean"
    mod = module({"x": (24, 64)}, body)
    check_fusion(mod, groups=[[f"relax.{name}" for name in names.split()]])


def test_a_norm_and_the_maximum_of_its_rows() -> None:
    def body(emit, x, g):
        return op.max(op.nn.rms_norm(x, g, axes=[-1], epsilon=1e-6), axis=-1)

    mod = module({"x": (24, 64), "g": (64,)}, body)
    check_fusion(mod, groups=[["relax.nn.rms_norm", "relax.max"]])


def test_reductions_with_a_matmul_between_them_are_apart() -> None:
    def body(emit, x, w):
        product = emit(op.matmul(emit(op.subtract(x, op.max(x, -1, True)), "less"), w), "product")
        return op.sum(op.add(x, product), axis=-1)

    check_fusion(
        module({"x": (24, 64), "w": (64, 64)}, body),
        groups=[["relax.max", "relax.subtract"], [MATMUL, "relax.add"], ["relax.sum"]],
        cut={
            ("less", "product"): Code.TWO_ANCHORS,
            ("lv1", "out"): Code.TWO_ANCHORS,
        },
    )


def test_a_gated_mlp_is_two_kernels() -> None:
    def body(emit, x):
        gate = emit(op.matmul(x, constant(64, 128, seed=1)), "gate")
        up = emit(op.matmul(x, constant(64, 128, seed=2)), "up")
        return op.multiply(op.nn.silu(gate), up)

    text = "is 16x128, the kernel makes 16x256"
    check_fusion(
        module({"x": (16, 64)}, body),
        groups=[[MATMUL], [SLICE, SLICE, "relax.nn.silu", "relax.multiply"]],
        cut={
            ("combined", "gate"): (Code.SHAPE, f"gate {text}"),
            ("combined", "up"): (Code.SHAPE, f"up {text}"),
        },
    )
