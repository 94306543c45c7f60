"""The graph of a function: nodes, kinds, edges, readers, and what is no node."""

from __future__ import annotations

import pytest
import tvm
from fusion import module, plan_of
from tvm import relax, te
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvmfuse.graph import build_graph, used_variables
from tvmfuse.operators import EXPENSIVE, KIND_OF_OPERATOR, Kind, kind_of
from tvmfuse.reasons import MEANING, Code

op = relax.op


def test_nodes_edges_and_readers() -> None:
    def body(emit, x, w):
        product = emit(op.matmul(x, w), "product")
        bent = emit(op.nn.relu(product), "bent")
        return op.add(bent, product), op.sum(bent, axis=1)

    graph = build_graph(module({"x": (4, 8), "w": (8, 6)}, body))
    assert [node.name for node in graph.nodes] == ["product", "bent", "out", "out1"]
    assert [node.operator.removeprefix("relax.") for node in graph.nodes] == [
        "matmul",
        "nn.relu",
        "add",
        "sum",
    ]
    assert [node.kind for node in graph.nodes] == [
        Kind.MATMUL,
        Kind.ELEMENTWISE,
        Kind.ELEMENTWISE,
        Kind.REDUCTION,
    ]
    assert graph.edges() == [(0, 1), (1, 2), (0, 2), (1, 3)]
    assert graph.consumers == ((1, 2), (2, 3), (), ())
    assert [node.is_output for node in graph.nodes] == [False, False, True, True]
    assert [int(extent) for extent in graph.nodes[3].shape] == [4]
    assert graph.nodes[0].dtype == "float32"


def test_a_value_read_twice_is_one_edge() -> None:
    def body(emit, x):
        shared = emit(op.exp(x), "shared")
        return op.multiply(shared, shared)

    graph = build_graph(module({"x": (4,)}, body))
    assert graph.edges() == [(0, 1)]
    assert graph.consumers == ((1,), ())


def test_symbols_are_no_values() -> None:
    rows = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((rows, 8), "float32"))
    assert used_variables(op.reshape(x, relax.ShapeExpr([rows * 8]))) == [x]


def test_tuples_have_no_shape_and_their_own_kind() -> None:
    def body(emit, x):
        halves = emit(op.split(x, 2, axis=1), "halves")
        return op.add(emit(halves[0], "left"), emit(halves[1], "right"))

    graph = build_graph(module({"x": (4, 8)}, body))
    halves, left = graph.nodes[:2]
    assert (halves.kind, halves.shape, halves.dtype) == (Kind.MOVEMENT, None, "")
    assert (left.kind, left.operator) == (Kind.TUPLE, "tuple")


def test_a_match_cast_is_opaque() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(ndim=1, dtype="float32")):
            m = T.int64()
            with R.dataflow():
                known = R.match_cast(x, R.Tensor((m,), "float32"))
                y = R.exp(known)
                R.output(y)
            return y

    graph = build_graph(Module)
    assert [(node.operator, node.kind) for node in graph.nodes] == [
        ("match_cast", Kind.OPAQUE),
        ("relax.exp", Kind.ELEMENTWISE),
    ]


@pytest.mark.parametrize(
    ("attrs", "kind"),
    [
        ({}, Kind.OPAQUE),
        ({"op_pattern": 0}, Kind.ELEMENTWISE),
        ({"op_pattern": 1}, Kind.ELEMENTWISE),
        ({"op_pattern": 2}, Kind.MOVEMENT),
        ({"op_pattern": 4}, Kind.OPAQUE),
        ({"op_pattern": 0, "tirx.is_scheduled": True}, Kind.OPAQUE),
    ],
)
def test_the_kind_of_a_primfunc(attrs: dict, kind: Kind) -> None:
    source = te.placeholder((4,), "float32", name="source")
    func = te.create_prim_func([source, te.compute((4,), lambda i: source[i] + 1.0)])
    for name, value in attrs.items():
        func = func.with_attr(name, value)
    symbol = tvm.ir.GlobalVar("f")
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    call = relax.call_tir(symbol, [x], out_ty=relax.TensorType((4,), "float32"))
    assert kind_of(call, {"f": func}) is kind
    assert kind_of(call, {}) is Kind.OPAQUE


def two_blocks() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function(pure=False)
        def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            with R.dataflow():
                a = R.exp(x)
                R.output(a)
            _ = R.print(a, format="{}")
            with R.dataflow():
                b = R.sin(a)
                R.output(b)
            return b

    return Module


def test_each_dataflow_block_is_read() -> None:
    graph = build_graph(two_blocks())
    assert [(node.name, node.block) for node in graph.nodes] == [("a", 0), ("b", 2)]
    assert graph.nodes[0].is_output


def test_no_group_spans_two_blocks() -> None:
    """A value that crosses a call with effects must be stored before it."""
    plan = plan_of(two_blocks())
    assert [match.nodes for match in plan.matches] == [(0,), (1,)]
    reason = plan.edges[0, 1]
    assert reason.code is Code.NOT_CONVEX
    assert reason.text == "a call that may have effects runs between the two"


def test_every_operator_of_the_table_exists() -> None:
    for name in [*KIND_OF_OPERATOR, *EXPENSIVE]:
        assert tvm.ir.Op.get(name) is not None
    for name in EXPENSIVE:
        assert KIND_OF_OPERATOR[name] is Kind.ELEMENTWISE


def test_every_code_has_a_meaning() -> None:
    assert set(MEANING) == set(Code)
    assert all(sentence.endswith(".") for sentence in MEANING.values())
