"""The one helper of the planner's tests: what fused, what did not and why, and the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
import tvm_ffi
from numpy_reference import evaluate
from tvm import relax, tirx
from tvm.target import Target

from tvmfuse.graph import Graph
from tvmfuse.operators import Kind
from tvmfuse.options import Options
from tvmfuse.passes.build import build, finish_kernels
from tvmfuse.passes.fuse import fuse, plan_and_outline
from tvmfuse.passes.partition import reduced_axes
from tvmfuse.passes.plan import Plan
from tvmfuse.passes.prepare import prepare
from tvmfuse.pattern import Pattern
from tvmfuse.patterns import DEFAULT
from tvmfuse.reasons import Code
from tvmfuse.target import resolve_target

OPTIONS = Options(verify=False)
KEEP = Options(verify=False, layout=False)  # convolutions stay in the layout they are written in
Shape = tuple[int | tirx.Var, ...]
Verdict = Code | tuple[Code, str]
Emit = Callable[..., relax.Var]

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10}
# Roundings of a handful of operators and of their polynomial exp, erf and tanh.
UNITS = 32.0


def module(inputs: Mapping[str, Shape | tuple[Shape, str]], body: Callable) -> tvm.IRModule:
    """``main`` over ``inputs`` (a shape, float32, or a shape and a dtype), in one dataflow block.

    ``body(emit, *variables)`` returns one expression or several; ``emit(expression, name)`` binds
    a value under a name, so that it may be read more than once and be named in ``cut``.
    """
    builder = relax.BlockBuilder()
    params = [relax.Var(name, _tensor_type(given)) for name, given in inputs.items()]
    with builder.function("main", params):
        with builder.dataflow():
            result = body(lambda expr, name="lv": builder.emit(expr, name), *params)
            results = result if isinstance(result, tuple | list) else [result]
            outputs = [builder.emit_output(item, "out") for item in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return relax.transform.CanonicalizeBindings()(builder.get())


def _tensor_type(given: Shape | tuple[Shape, str]) -> relax.TensorType:
    if len(given) == 2 and isinstance(given[1], str):
        return relax.TensorType(given[0], given[1])
    return relax.TensorType(given, "float32")


def constant(*shape: int, seed: int = 0, dtype: str = "float32") -> relax.Expr:
    """A constant of standard normal values."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return relax.const(np.asarray(values, dtype), dtype)


def scalar(value: float, dtype: str = "float32") -> relax.Expr:
    """A constant of rank 0."""
    return relax.const(np.asarray(value, dtype), dtype)


def plan_of(
    mod: tvm.IRModule, options: Options = OPTIONS, patterns: Sequence[Pattern] = DEFAULT
) -> Plan:
    """The plan of ``main`` after the same preparation as in ``tvmfuse.compile``."""
    return plan_and_outline(prepare(mod, options), patterns, options, {})[1]["main"]


def outlined_module(mod: tvm.IRModule, options: Options = OPTIONS) -> tvm.IRModule:
    """``mod`` prepared, planned and with its groups outlined."""
    return plan_and_outline(prepare(mod, options), DEFAULT, options, {})[0]


def groups_of(plan: Plan) -> list[list[str]]:
    """The operators of each group, groups and operators in program order."""
    nodes = plan.graph.nodes
    return [[nodes[i].operator for i in m.nodes] for m in sorted(plan.matches, key=_first_node)]


def _first_node(match: object) -> int:
    return match.nodes[0]


def check_fusion(
    mod: tvm.IRModule,
    *,
    groups: Sequence[Sequence[str]],
    cut: Mapping[tuple[str, str], Verdict] | None = None,
    rejects: Mapping[tuple[str, str], Verdict] | None = None,
    expected: tvm.IRModule | None = None,
    options: Options = OPTIONS,
    patterns: Sequence[Pattern] = DEFAULT,
    numerics: bool = True,
    inputs: Sequence[np.ndarray] | None = None,
) -> Plan:
    """Assert every group, every edge that is cut, and that the fused module computes the same.

    ``groups``: the operators of every group, in program order.
    ``cut``: exactly the edges ``(producer, consumer)`` that are not fused, by variable name, with
    their code and, where given, the whole sentence.
    ``rejects``: refused matches by ``(pattern, anchor's name)``; others may be refused as well.
    ``expected``: the outlined module, compared structurally.
    ``inputs``: what to run on; standard normal values by default.
    """
    before = tvm_ffi.structural_hash(mod)
    prepared = prepare(mod, options)
    outlined, plans, _ = plan_and_outline(prepared, patterns, options, {})
    plan = plans["main"]
    assert groups_of(plan) == [list(group) for group in groups], _told(plan)
    _check_edges(plan, cut or {})
    _check_rejections(plan, rejects or {})
    check_partition(plan)
    if expected is not None:
        assert_same(outlined, expected)
    if numerics:
        check_numbers(mod, prepared, plan, options, patterns, inputs)
    assert tvm_ffi.structural_hash(mod) == before, "the caller's module was changed"
    return plan


def _check_edges(plan: Plan, cut: Mapping[tuple[str, str], Verdict]) -> None:
    names = [node.name for node in plan.graph.nodes]
    assert set(plan.edges) == set(plan.graph.edges()), "an edge has no reason"
    found = {
        (names[producer], names[consumer]): reason
        for (producer, consumer), reason in plan.edges.items()
        if reason.code is not Code.FUSED
    }
    assert set(found) == set(cut), _told(plan)
    for edge, verdict in cut.items():
        _check_verdict(edge, found[edge], verdict)


def _check_rejections(plan: Plan, rejects: Mapping[tuple[str, str], Verdict]) -> None:
    found = {(r.pattern, plan.graph.nodes[r.anchor].name): r.reason for r in plan.rejections}
    for key, verdict in rejects.items():
        assert key in found, f"{key} was not rejected; rejected: {sorted(found)}"
        _check_verdict(key, found[key], verdict)


def _check_verdict(key: tuple[str, str], reason: object, verdict: Verdict) -> None:
    code, text = (verdict, None) if isinstance(verdict, Code) else verdict
    assert reason.code is code, f"{key}: {reason}"
    assert text is None or reason.text == text, f"{key}: {reason}"


def check_partition(plan: Plan) -> None:
    """Groups are disjoint, each is convex, and together they can be put in an order."""
    owner: dict[int, int] = {}
    for number, match in enumerate(plan.matches):
        for node in match.nodes:
            assert node not in owner, f"node {node} is in two groups"
            owner[node] = number
    # Contract each group to one vertex; a cycle left over means some groups are not convex.
    vertex = [("group", owner[n.index]) if n.index in owner else n.index for n in plan.graph.nodes]
    waiting = {v: set() for v in vertex}
    for producer, consumer in plan.graph.edges():
        if vertex[producer] != vertex[consumer]:
            waiting[vertex[consumer]].add(vertex[producer])
    while waiting:
        ready = {v for v, sources in waiting.items() if not sources & waiting.keys()}
        assert ready, f"groups depend on each other: {waiting}"
        waiting = {v: sources for v, sources in waiting.items() if v not in ready}


def assert_same(found: tvm.IRModule, expected: tvm.IRModule) -> None:
    """Structural equality of two modules, with both printed where they differ."""
    if not tvm_ffi.structural_equal(found, expected, map_free_vars=True):
        where = tvm_ffi.get_first_structural_mismatch(found, expected, map_free_vars=True)
        raise AssertionError(f"{where}\nfound:\n{found.script()}\nexpected:\n{expected.script()}")


def check_numbers(
    mod: tvm.IRModule,
    prepared: tvm.IRModule,
    plan: Plan,
    options: Options = OPTIONS,
    patterns: Sequence[Pattern] = DEFAULT,
    inputs: Sequence[np.ndarray] | None = None,
) -> None:
    """The fused kernels, compiled for this CPU, against ``mod`` in float64 NumPy."""
    target = resolve_target("llvm")
    fused = fuse(prepared, target, patterns, options)
    assert not fused.splits, f"a group was cut back: {fused.splits}"
    arrays = random_inputs(mod) if inputs is None else list(inputs)
    found = run(build(finish_kernels(fused.scheduled, target), target), arrays)
    exact = evaluate(mod, arrays)
    assert len(found) == len(exact)
    terms = longest_sum(plan.graph)
    for got, want in zip(found, exact, strict=True):
        assert got.shape == want.shape
        if got.dtype.kind != "f":
            np.testing.assert_array_equal(got, want)
            continue
        dtypes = [node.dtype for node in plan.graph.nodes] + [str(got.dtype)]
        epsilon = max(EPSILON[d] for d in dtypes if d in EPSILON)
        tolerance = UNITS * epsilon * math.sqrt(terms)
        size = float(np.sqrt(np.mean(np.square(want)))) if want.size else 0.0
        np.testing.assert_allclose(
            got.astype("float64"), want, rtol=tolerance, atol=tolerance * size, err_msg=_told(plan)
        )


def random_inputs(mod: tvm.IRModule, extent: int = 5) -> list[np.ndarray]:
    """Standard normal values for every parameter, 0 or 1 for integers; symbols are ``extent``."""
    generator = np.random.default_rng(20)
    arrays = []
    for param in mod["main"].params:
        shape = [int(d) if isinstance(d, tirx.IntImm) else extent for d in param.ty.shape.values]
        dtype = str(param.ty.dtype)
        is_float = dtype.startswith("float")
        values = generator.standard_normal(shape) if is_float else generator.integers(0, 2, shape)
        arrays.append(np.asarray(values, dtype))
    return arrays


def run(executable: relax.VMExecutable, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of ``main``, always as a list."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(array) for array in inputs])
    return [item.numpy() for item in ([result] if hasattr(result, "numpy") else result)]


def run_stock(mod: tvm.IRModule, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of ``main`` compiled by TVM alone, with nothing fused."""
    return run(tvm.compile(mod, target=Target("llvm")), inputs)


def longest_sum(graph: Graph) -> int:
    """Terms of the longest sum in ``graph``; symbolic extents count as 1."""
    terms = 1
    for node in graph.nodes:
        if node.kind is Kind.MATMUL:
            terms = max(terms, _static(node.value.args[0].ty.shape)[-1])
        elif node.kind is Kind.CONV:
            weight = _static(node.value.args[1].ty.shape)
            channels = weight[str(node.value.attrs.kernel_layout).index("O")]
            terms = max(terms, math.prod(weight) // max(1, channels))
        elif node.kind in (Kind.REDUCTION, Kind.ROW):
            extents = _static(node.value.args[0].ty.shape)
            terms = max(terms, math.prod(extents[axis] for axis in reduced_axes(node) or ()))
    return terms


def _static(shape: relax.ShapeExpr) -> list[int]:
    return [int(d) if isinstance(d, tirx.IntImm) else 1 for d in shape.values]


def _told(plan: Plan) -> str:
    """What the plan decided, for a failed assertion."""
    nodes = plan.graph.nodes
    lines = ["", "groups:"]
    lines += [
        f"  {m.pattern}: " + ", ".join(f"{nodes[i].name}={nodes[i].operator}" for i in m.nodes)
        for m in sorted(plan.matches, key=_first_node)
    ]
    lines.append("edges:")
    lines += [
        f"  ({nodes[a].name!r}, {nodes[b].name!r}): {reason.code} {reason.text}"
        for (a, b), reason in plan.edges.items()
        if reason.code is not Code.FUSED
    ]
    lines.append("rejections:")
    lines += [
        f"  ({r.pattern!r}, {nodes[r.anchor].name!r}): {r.reason.code} {r.reason.text}"
        for r in plan.rejections
    ]
    return "\n".join(lines)
