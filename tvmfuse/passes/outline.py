"""Move each planned group into a primitive function of its own: composite -> one PrimFunc.

Before::

    lv  = matmul(x, w)
    lv1 = add(lv, b)
    y   = relu(lv1)

After::

    fused_matmul_add_relu(x, w, b):  (the same three bindings)
    y = fused_matmul_add_relu(x, w, b)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import GenericConst

from ..errors import FusionError
from ..graph import Graph, used_variables
from ..operators import Kind
from .rewriter import substitute

# Names longer than this tell less, not more; the report lists every operator.
MAX_OPERATORS_IN_NAME = 6


@dataclass(frozen=True)
class OutlinedGroup:
    """One call site of a primitive function."""

    symbol: str
    nodes: tuple[int, ...]
    pattern: str


@dataclass(frozen=True)
class Outlined:
    """The module with its groups outlined, and where each group went."""

    mod: tvm.IRModule
    groups: tuple[OutlinedGroup, ...]


@dataclass(frozen=True)
class _Piece:
    function: relax.Function
    arguments: list[relax.Expr]
    outputs: list[relax.Var]


def outline(
    mod: tvm.IRModule, graph: Graph, groups: Sequence[tuple[str, tuple[int, ...]]]
) -> Outlined:
    """Outline ``groups``, each ``(pattern name, node numbers)``, of ``mod[graph.function]``.

    Groups must be disjoint, convex together, and within one dataflow block; else FusionError.
    Structurally equal groups share one function.  ``mod`` is left as it was.
    """
    builder = relax.BlockBuilder(mod)
    func = mod[graph.function]
    owner = {node: i for i, (_, nodes) in enumerate(groups) for node in nodes}
    shared: dict[int, list[tuple[relax.Function, tvm.ir.GlobalVar]]] = {}
    taken = {gv.name_hint for gv in mod.get_global_vars()}
    placed: list[OutlinedGroup] = []
    blocks: list[relax.BindingBlock] = []
    start = 0
    for block in func.body.blocks:
        if not isinstance(block, relax.DataflowBlock):
            blocks.append(block)
            continue
        count = len(block.bindings)
        bindings: list[relax.Binding] = []
        for unit in _ordered_units(graph, owner, range(start, start + count)):
            if unit[0] not in owner:
                bindings.append(block.bindings[unit[0] - start])
                continue
            pattern = groups[owner[unit[0]]][0]
            piece = _extract(builder, graph, unit)
            symbol = _function_for(
                builder, piece.function, _name(graph, unit, pattern), shared, taken
            )
            placed.append(OutlinedGroup(symbol.name_hint, tuple(unit), pattern))
            call = builder.normalize(relax.Call(symbol, piece.arguments))
            bindings += _bind_outputs(builder, call, piece.outputs)
        blocks.append(relax.DataflowBlock(bindings))
        start += count
    body = builder.normalize(relax.SeqExpr(blocks, func.body.body))
    main = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
    builder.update_func(mod.get_global_var(graph.function), main)
    return Outlined(builder.get(), tuple(placed))


def _ordered_units(graph: Graph, owner: dict[int, int], nodes: range) -> list[list[int]]:
    """Groups and single nodes of one block, each after all that it reads, else in old order."""
    units: dict[object, list[int]] = {}
    unit_of: dict[int, object] = {}
    for node in nodes:
        key: object = ("group", owner[node]) if node in owner else node
        unit_of[node] = key
        units.setdefault(key, []).append(node)
    done: set[object] = set()
    order: list[list[int]] = []
    for root in sorted(units, key=lambda key: units[key][-1]):
        stack: list[tuple[object, bool]] = [(root, False)]
        open_units: set[object] = set()
        while stack:
            key, expanded = stack.pop()
            if key in done:
                continue
            if expanded:
                done.add(key)
                order.append(units[key])
                continue
            if key in open_units:
                raise FusionError(
                    f"the group of {graph.nodes[units[key][0]].name} is not convex: another "
                    "operator reads its result and feeds it; leave one of its operators out"
                )
            open_units.add(key)
            stack.append((key, True))
            for node in units[key]:
                for source in graph.nodes[node].inputs:
                    if source in unit_of and unit_of[source] != key and unit_of[source] not in done:
                        stack.append((unit_of[source], False))
    return order


def _extract(builder: relax.BlockBuilder, graph: Graph, unit: list[int]) -> _Piece:
    """The function of one group, the arguments of its call, and the variables it defines."""
    members = set(unit)
    arguments: list[relax.Expr] = []
    params: list[relax.Var] = []
    replaced: dict[relax.Expr, relax.Expr] = {}

    def parameter(expr: relax.Expr, name: str) -> relax.Var:
        for argument, param in zip(arguments, params, strict=True):
            if argument.same_as(expr):
                return param
        params.append(relax.Var(name, expr.ty))
        arguments.append(expr)
        return params[-1]

    bindings, outputs = [], []
    for index in unit:
        node = graph.nodes[index]
        for var in used_variables(node.value):
            if graph.index_of.get(var) not in members:
                replaced[var] = parameter(var, var.name)
        value = _lift_constants(substitute(node.value, replaced), parameter)
        value = builder.normalize(value)
        var = relax.DataflowVar(node.name, value.ty)
        leaves = node.is_output or any(c not in members for c in graph.consumers[index])
        if leaves:
            var = relax.Var(node.name, value.ty)
            outputs.append((node.var, var))
        replaced[node.var] = var
        bindings.append(relax.VarBinding(var, value))
    inner = [var for _, var in outputs]
    result: relax.Expr = inner[0] if len(inner) == 1 else builder.normalize(relax.Tuple(inner))
    body = builder.normalize(relax.SeqExpr([relax.DataflowBlock(bindings)], result))
    attrs = tvm.ir.make_node("ir.DictAttrs", Primitive=True)
    function = relax.Function(params, body, result.ty, True, attrs)
    return _Piece(function, arguments, [outer for outer, _ in outputs])


def _lift_constants(
    value: relax.Expr, parameter: Callable[[relax.Expr, str], relax.Expr]
) -> relax.Expr:
    """Make tensor constants parameters: FuseTIR takes none.  Scalars become immediates."""
    if not isinstance(value, relax.Call):
        return value
    scalars_stay = len(value.args) == 2 and value.op.name in _IMMEDIATE_OPERAND

    def lift(arg: relax.Expr) -> relax.Expr:
        if isinstance(arg, GenericConst) and isinstance(arg.ty, relax.TensorType):
            return arg if scalars_stay and arg.ty.ndim == 0 else parameter(arg, "constant")
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([lift(field) for field in arg.fields])
        return arg

    args = [lift(arg) for arg in value.args]
    return relax.Call(value.op, args, value.attrs, value.ty_args, value.span)


# Operators whose legalisation turns a rank-0 constant operand into an immediate.
_IMMEDIATE_OPERAND = frozenset(
    f"relax.{name}"
    for name in """
        add subtract multiply divide floor_divide power mod floor_mod maximum minimum equal
        not_equal greater greater_equal less less_equal
        """.split()
)


def _name(graph: Graph, unit: list[int], pattern: str) -> str:
    """``fused_matmul_add_relu``; past MAX_OPERATORS_IN_NAME ``fused_attention_of_25``."""
    named = [graph.nodes[i] for i in unit if graph.nodes[i].kind is not Kind.VIEW]
    words = [node.operator.rsplit(".", 1)[-1] for node in named]
    if len(words) > MAX_OPERATORS_IN_NAME:
        return f"fused_{pattern}_of_{len(words)}"
    return "_".join(["fused", *words]) if len(words) > 1 else "_".join(words or [pattern])


def _function_for(
    builder: relax.BlockBuilder,
    function: relax.Function,
    name: str,
    shared: dict[int, list[tuple[relax.Function, tvm.ir.GlobalVar]]],
    taken: set[str],
) -> tvm.ir.GlobalVar:
    """The global of a structurally equal function seen before, else of ``function`` itself."""
    same_hash = shared.setdefault(tvm_ffi.structural_hash(function), [])
    for other, symbol in same_hash:
        if tvm_ffi.structural_equal(other, function):
            return symbol
    unique, number = name, 0
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    taken.add(unique)
    symbol = builder.add_func(function, unique)
    same_hash.append((function, symbol))
    return symbol


def _bind_outputs(
    builder: relax.BlockBuilder, call: relax.Expr, outputs: list[relax.Var]
) -> list[relax.Binding]:
    if len(outputs) == 1:
        return [relax.VarBinding(outputs[0], call)]
    results = relax.DataflowVar("results", call.ty)
    return [relax.VarBinding(results, call)] + [
        relax.VarBinding(outer, builder.normalize(relax.TupleGetItem(results, i)))
        for i, outer in enumerate(outputs)
    ]
