"""How much work a block does: what decides on inlining and on parallel loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx

from ..analysis import BlockInfo, calls_of, static
from .machine import Machine

#: Calls that cost about an instruction or vanish; every other call counts as expensive.
_CHEAP_CALLS = frozenset(
    f"tirx.{name}"
    for name in (
        *("if_then_else", "likely", "reinterpret", "fabs", "floor", "ceil", "trunc", "nearbyint"),
        *("round", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left"),
        *("shift_right", "sqrt", "rsqrt"),
    )
)
#: Operations that an expensive call counts for.
_CALL_OPERATIONS = 16
#: Operations that the traffic of one vector from beyond the L2 cache counts for.
_MEMORY_OPERATIONS = 24
#: A parallel loop pays from this many times ``Machine.grain`` on (measured: 15 microseconds).
_FORKS_WORTH = 4
#: Extent that stands for a symbolic one where work is estimated.
_SYMBOLIC_EXTENT = 128


def expression_size(expression: ir.Expr) -> int:
    """How many operations and loads an expression has, as a tree, without those in indices.

    An expensive call counts for the operations that it is made of.
    """
    count = _CALL_OPERATIONS * sum(map(_is_expensive_call, calls_of(expression)))

    def visit(node: ir.Expr) -> tvm_ffi.structural.WalkResult:
        nonlocal count
        count += 1
        load = isinstance(node, ir.TensorLoad)
        return tvm_ffi.structural.WalkResult.SKIP if load else tvm_ffi.structural.WalkResult.ADVANCE

    tvm_ffi.structural_walk(expression, (ir.Expr, visit), order="pre")
    return count


def is_expensive(expression: ir.Expr) -> bool:
    """Whether an expression calls a function that takes many instructions, such as exp."""
    return any(_is_expensive_call(call) for call in calls_of(expression))


def _is_expensive_call(call: ir.Call) -> bool:
    return not isinstance(call.op, ir.Op) or call.op.name not in _CHEAP_CALLS


def store_of(info: BlockInfo) -> tirx.BufferStore:
    """The one store of a block, which the rule's check has made sure of.

    Raises ``ValueError`` for a block of another form.
    """
    if info.store is None:
        raise ValueError(f"block {info.name} is not one store")
    return info.store


def iterations(info: BlockInfo) -> int:
    """How often a block runs; symbolic extents count as a typical length."""
    return math.prod(static(extent) or _SYMBOLIC_EXTENT for extent in info.extents)


def worth_parallel(infos: Sequence[BlockInfo], machine: Machine) -> bool:
    """Whether a parallel loop over what the blocks do pays for its fork and join.

    Work is counted in vector operations, and traffic beyond the L2 cache in as many as could
    be done meanwhile.
    """
    work = 0
    for info in infos:
        operations = 1
        if info.store is not None:
            operations += expression_size(info.store.value)
        work += iterations(info) * operations // machine.lanes_of(info.dtype)
    touched: list[ir.Var] = []
    for buffer in (buffer for info in infos for buffer in (*info.reads, *info.writes)):
        if not any(buffer.same_as(known) for known in touched):
            touched.append(buffer)
    traffic = sum(_bytes_of(buffer, infos) for buffer in touched)
    if 4 * traffic > 3 * machine.l2_bytes:
        work += traffic * _MEMORY_OPERATIONS // (machine.vector_bits // 8)
    return work >= _FORKS_WORTH * machine.grain


def _bytes_of(buffer: ir.Var, infos: Sequence[BlockInfo]) -> int:
    """The size of a buffer, but no more than the blocks can touch of it (a table of rows)."""
    elements = math.prod(static(size) or _SYMBOLIC_EXTENT for size in buffer.shape)
    touched = sum(
        iterations(info)
        for info in infos
        if any(buffer.same_as(other) for other in (*info.reads, *info.writes))
    )
    bits = int("".join(filter(str.isdigit, str(buffer.dtype))) or 8)
    return min(elements, touched) * bits // 8
