"""Reduce narrow types in 32 bits: float16 and bfloat16 in float32, small integers in int32.

Besides the lost precision, TVM's cross-thread reduction of types narrower than a register goes
through shared memory with warp barriers that its CUDA printer drops (seen as races on the emulated
device), whereas 32-bit values go through warp shuffles.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from .. import analysis
from ..analysis import BlockInfo


def wide_type(dtype: str) -> str | None:
    """The 32-bit accumulator of a narrow type; ``None`` if the type is wide enough."""
    kind = tvm.DataType(dtype)
    if kind.bits >= 32:
        return None
    if dtype == "bool" or dtype.startswith(("int", "uint")):
        return "int32"
    return "float32"


def is_commutative(block: BlockInfo) -> bool:
    """Whether a reduction's update is ``acc op x`` with op one of +, *, min and max."""
    store = block.store
    if store is None or not isinstance(store.value, (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)):
        return False
    return isinstance(store.value.a, ir.TensorLoad) and store.value.a.source.same_as(store.buffer)


def widened(sch: s_tir.Schedule) -> s_tir.Schedule:
    """The program with every narrow reduction accumulated in 32 bits.

    Before::  acc: float16;  acc[i] = acc[i] + x[i, k];  ... acc[i] ...
    After::   acc: float32;  acc[i] = acc[i] + float32(x[i, k]);  ... float16(acc[i]) ...

    No reduction may write an output (``nest.detach_outputs``), and updates must have the form
    ``acc op x``; any other stays as it is.
    """
    narrow = _narrow(sch)
    if not narrow:
        return sch
    func = sch.mod["main"]
    for block in narrow:
        func = _widen(func, block.writes[0])
    return s_tir.Schedule(func)


def _narrow(sch: s_tir.Schedule) -> list[BlockInfo]:
    return [
        block
        for block in analysis.anchors(analysis.blocks(sch))
        if wide_type(block.dtype) is not None and is_commutative(block) and not block.is_output
    ]


def _widen(func: tirx.PrimFunc, old: ir.Var) -> tirx.PrimFunc:
    """Replace one intermediate buffer by a wide one, with casts where it is read."""
    narrow = str(old.dtype)
    wide = wide_type(narrow)
    new = tirx.decl_buffer(old.shape, wide, old.name)

    def load(node: ir.TensorLoad) -> ir.Expr:
        if not node.source.same_as(old):
            return node
        return tirx.Cast(narrow, tirx.BufferLoad(new, list(node.indices)))

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if not node.buffer.same_as(old):
            return node
        value = node.value
        if isinstance(value, (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)) and isinstance(
            value.a, tirx.Cast
        ):
            value = type(value)(value.a.value, _wide(value.b, wide))
        else:
            value = tirx.Cast(wide, value)
        return tirx.BufferStore(new, value, list(node.indices))

    def initial(node: s_tir.SBlock) -> tirx.Stmt | None:
        body = node.body
        if node.init is None or not isinstance(body, tirx.BufferStore):
            return node.init
        if not body.buffer.same_as(new):
            return node.init
        return tirx.BufferStore(new, _identity(body.value, wide), list(body.indices))

    def block(node: s_tir.SBlock) -> s_tir.SBlock:
        def regions(items: list) -> list:
            return [
                tirx.BufferRegion(new, list(item.region)) if item.source.same_as(old) else item
                for item in items
            ]

        return s_tir.SBlock(
            node.iter_vars,
            regions(list(node.reads)),
            regions(list(node.writes)),
            node.name_hint,
            node.body,
            initial(node),
            [new if buffer.same_as(old) else buffer for buffer in node.alloc_buffers],
            node.match_buffers,
            node.annotations,
        )

    body = tvm_ffi.structural_map(
        func.body,
        [(ir.TensorLoad, load), (tirx.BufferStore, store), (s_tir.SBlock, block)],
    )
    return func.with_body(body)


def _wide(value: ir.Expr, dtype: str | None) -> ir.Expr:
    """A value in the wide type; a product of two narrow ones is exact there."""
    if isinstance(value, tirx.Mul):
        return tirx.Mul(tirx.Cast(dtype, value.a), tirx.Cast(dtype, value.b))
    return tirx.Cast(dtype, value)


def _identity(update: ir.Expr, dtype: str | None) -> ir.Expr:
    """The neutral element of the update's operation, as TVM's reducers spell it."""
    if isinstance(update, tirx.Max):
        return tirx.min_value(dtype)
    if isinstance(update, tirx.Min):
        return tirx.max_value(dtype)
    return tirx.const(1 if isinstance(update, tirx.Mul) else 0, dtype)
