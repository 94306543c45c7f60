"""Row kernels: norms, softmax, reductions, with the producers and consumers of the same row."""

from __future__ import annotations

import pytest
import tvm
from fusion import check_fusion, module, scalar
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvmfuse.reasons import Code

op = relax.op
NAMES = "add multiply exp sum max mean nn.softmax nn.layer_norm nn.rms_norm matmul"
ADD, MULTIPLY, EXP, SUM, MAX, MEAN, SOFTMAX, LAYER_NORM, RMS_NORM, MATMUL = (
    f"relax.{name}" for name in NAMES.split()
)
ROWS = (24, 64)


def layer_norm(x: relax.Expr, gamma: relax.Expr, beta: relax.Expr) -> relax.Expr:
    return op.nn.layer_norm(x, gamma, beta, axes=[-1])


def test_residual_and_layer_norm_with_both_results_used() -> None:
    @I.ir_module
    class Expected:
        @R.function(private=True)
        def fused_add_layer_norm(
            x: R.Tensor((24, 64), "float32"),
            r: R.Tensor((24, 64), "float32"),
            g: R.Tensor((64,), "float32"),
            b: R.Tensor((64,), "float32"),
        ) -> R.Tuple(R.Tensor((24, 64), "float32"), R.Tensor((24, 64), "float32")):
            R.func_attr({"Primitive": True})
            with R.dataflow():
                out: R.Tensor((24, 64), "float32") = R.add(x, r)
                out1: R.Tensor((24, 64), "float32") = R.nn.layer_norm(out, g, b, axes=[-1])
                R.output(out, out1)
            return (out, out1)

        @R.function
        def main(
            x: R.Tensor((24, 64), "float32"),
            r: R.Tensor((24, 64), "float32"),
            g: R.Tensor((64,), "float32"),
            b: R.Tensor((64,), "float32"),
        ) -> R.Tuple(R.Tensor((24, 64), "float32"), R.Tensor((24, 64), "float32")):
            cls = Expected
            with R.dataflow():
                results: R.Tuple(R.Tensor((24, 64), "float32"), R.Tensor((24, 64), "float32")) = (
                    cls.fused_add_layer_norm(x, r, g, b)
                )
                out: R.Tensor((24, 64), "float32") = results[0]
                out1: R.Tensor((24, 64), "float32") = results[1]
                R.output(out, out1)
            return (out, out1)

    def body(emit, x, r, g, b):
        total = emit(op.add(x, r), "total")
        return total, layer_norm(total, g, b)

    check_fusion(
        module({"x": ROWS, "r": ROWS, "g": (64,), "b": (64,)}, body),
        groups=[[ADD, LAYER_NORM]],
        expected=Expected,
    )


def test_residual_and_rms_norm_with_both_results_used() -> None:
    def body(emit, x, r, g):
        total = emit(op.add(x, r), "total")
        return total, op.nn.rms_norm(total, g, axes=[-1], epsilon=1e-6)

    mod = module({"x": ROWS, "r": ROWS, "g": (64,)}, body)
    check_fusion(mod, groups=[[ADD, RMS_NORM]])


def test_the_activation_after_a_norm() -> None:
    mod = module(
        {"x": ROWS, "g": (64,), "b": (64,)},
        lambda emit, x, g, b: op.nn.gelu(layer_norm(x, g, b)),
    )
    check_fusion(mod, groups=[[LAYER_NORM, "relax.nn.gelu"]])


def test_softmax_with_scale_and_mask() -> None:
    def body(emit, scores, mask):
        return op.nn.softmax(op.add(op.multiply(scores, scalar(0.25)), mask), axis=-1)

    mod = module({"scores": (2, 4, 24, 24), "mask": (2, 1, 1, 24)}, body)
    check_fusion(mod, groups=[[MULTIPLY, ADD, SOFTMAX]])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_over_any_axis_after_exp(axis: int) -> None:
    mod = module({"x": (6, 10, 14)}, lambda emit, x: op.nn.softmax(op.tanh(x), axis=axis))
    check_fusion(mod, groups=[["relax.tanh", SOFTMAX]])


def test_log_softmax_of_half_precision() -> None:
    mod = module(
        {"x": (ROWS, "float16")},
        lambda emit, x: op.nn.log_softmax(op.astype(x, "float32"), axis=-1),
    )
    check_fusion(mod, groups=[["relax.astype", "relax.nn.log_softmax"]])


@pytest.mark.parametrize("with_producer", [False, True])
def test_two_reductions_of_one_tensor_are_one_kernel(with_producer: bool) -> None:
    def body(emit, x):
        shared = emit(op.negative(x), "shared") if with_producer else x
        return op.sum(shared, axis=1), op.max(shared, axis=1)

    producer = ["relax.negative"] if with_producer else []
    check_fusion(module({"x": ROWS}, body), groups=[[*producer, SUM, MAX]])


def test_statistics_and_what_is_made_of_them() -> None:
    def body(emit, x):
        centre = emit(op.mean(x, axis=-1, keepdims=True), "centre")
        centred = emit(op.subtract(x, centre), "centred")
        return op.multiply(centred, op.max(op.abs(centred), axis=-1, keepdims=True))

    names = "mean subtract abs max multiply"
    check_fusion(module({"x": ROWS}, body), groups=[[f"relax.{name}" for name in names.split()]])


def test_what_is_made_of_a_statistic_of_the_same_row() -> None:
    def body(emit, x):
        return op.subtract(x, op.max(x, axis=-1, keepdims=True))

    check_fusion(module({"x": ROWS}, body), groups=[[MAX, "relax.subtract"]])


def test_an_expensive_producer_that_each_element_reads_once() -> None:
    mod = module({"x": ROWS}, lambda emit, x: op.sum(op.exp(x), axis=-1))
    check_fusion(mod, groups=[[EXP, SUM]])


def test_a_symbolic_number_of_rows() -> None:
    rows = tvm.tirx.Var("n", "int64")
    mod = module(
        {"x": (rows, 64), "r": (rows, 64), "g": (64,), "b": (64,)},
        lambda emit, x, r, g, b: layer_norm(op.add(x, r), g, b),
    )
    check_fusion(mod, groups=[[ADD, LAYER_NORM]])


# -- near misses -----------------------------------------------------------------------------------


def test_reductions_over_other_axes_are_two_kernels() -> None:
    def body(emit, x):
        rows = emit(op.max(x, axis=1, keepdims=True), "rows")
        return op.sum(emit(op.subtract(x, rows), "shifted"), axis=0)

    check_fusion(
        module({"x": ROWS}, body),
        groups=[[MAX, "relax.subtract"], [SUM]],
        cut={
            ("shifted", "out"): (
                Code.TWO_ANCHORS,
                "max and sum are kernels of their own; no schedule rule has both",
            )
        },
    )


def test_a_norm_and_the_matmul_after_it_are_two_kernels() -> None:
    def body(emit, x, g, b, w):
        return op.matmul(emit(layer_norm(x, g, b), "normal"), w)

    text = "layer_norm and matmul are kernels of their own; no schedule rule has both"
    check_fusion(
        module({"x": ROWS, "g": (64,), "b": (64,), "w": (64, 32)}, body),
        groups=[[LAYER_NORM], [MATMUL]],
        cut={("normal", "out"): (Code.TWO_ANCHORS, text)},
    )


def test_a_broadcast_to_more_rows_is_no_epilogue() -> None:
    def body(emit, x, y):
        return op.add(emit(op.nn.softmax(x, axis=-1), "weights"), y)

    check_fusion(
        module({"x": ROWS, "y": (3, *ROWS)}, body),
        groups=[[SOFTMAX], [ADD]],
        cut={("weights", "out"): (Code.SHAPE, "out is 3x24x64, the kernel makes 24x64")},
    )


def test_an_expensive_row_is_not_repeated_for_every_row() -> None:
    def body(emit, x, row):
        return op.nn.softmax(op.add(x, emit(op.exp(row), "factor")), axis=-1)

    text = "relax.exp on 64 would be computed again for each of the 24x64 elements that read it"
    check_fusion(
        module({"x": ROWS, "row": (64,)}, body),
        groups=[[EXP], [ADD, SOFTMAX]],
        cut={("factor", "lv"): (Code.RECOMPUTE_COSTS_MORE, text)},
    )


def test_a_producer_with_a_reader_elsewhere_is_written_once() -> None:
    def body(emit, x, w):
        shared = emit(op.negative(x), "shared")
        return op.sum(shared, axis=-1), op.matmul(shared, w)

    text = "shared has 2 readers and is stored for the others"
    check_fusion(
        module({"x": ROWS, "w": (64, 32)}, body),
        groups=[["relax.negative", SUM], [MATMUL]],
        cut={("shared", "out1"): (Code.MULTI_USE, text)},
    )


def test_a_reduction_of_the_reduced_value() -> None:
    def body(emit, x):
        return op.sum(emit(op.max(x, axis=1), "largest"), axis=0)

    check_fusion(
        module({"x": ROWS}, body),
        groups=[[MAX], [SUM]],
        cut={("largest", "out"): Code.TWO_ANCHORS},
    )


def test_what_follows_a_view_of_an_output_is_not_taken_without_the_view() -> None:
    """Found by the random graphs: the norm and the transpose without the view between them."""

    def body(emit, x, g, b):
        normal = emit(layer_norm(x, g, b), "normal")
        tall = emit(op.expand_dims(normal, [1]), "tall")
        turned = emit(op.permute_dims(tall, [0, 2, 1]), "turned")
        return normal, op.matmul(tall, turned)

    check_fusion(
        module({"x": ROWS, "g": (64,), "b": (64,)}, body),
        groups=[[LAYER_NORM], ["relax.expand_dims", "relax.permute_dims", MATMUL]],
        cut={("out", "tall"): (Code.VIEW, "tall renames memory that is stored anyway")},
    )
