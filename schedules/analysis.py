"""Read-only questions about the structure of one lowered function.

Rules decide on what they learn here: iteration kinds, buffer shapes, dtypes and index expressions,
never on names.  Nothing in this file changes a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

_KIND_LETTERS = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}


@dataclass(frozen=True)
class BlockInfo:
    """One leaf block under the root block, in program order.

    ``kinds`` has one letter per block iterator: S spatial, R reduction, O anything else.
    ``reads`` and ``writes`` are the buffers (``tvm.ir.Var`` of a buffer type), without repeats.
    """

    handle: SBlockRV
    node: s_tir.SBlock
    kinds: str
    reads: tuple[ir.Var, ...]
    writes: tuple[ir.Var, ...]
    is_output: bool

    @property
    def name(self) -> str:
        """The block's name; for messages and ``Schedule.get_sblock``, never for a decision."""
        return self.node.name_hint

    @property
    def iterators(self) -> tuple[ir.Var, ...]:
        """The block variables, in order."""
        return tuple(iterator.var for iterator in self.node.iter_vars)

    @property
    def extents(self) -> tuple[ir.Expr, ...]:
        """The extent of each block iterator; an IntImm where it is static."""
        return tuple(iterator.dom.extent for iterator in self.node.iter_vars)

    @property
    def is_injective(self) -> bool:
        """Whether every iterator is spatial."""
        return set(self.kinds) <= {"S"}

    @property
    def is_reduction(self) -> bool:
        """Whether there is a reduction iterator and no iterator of an unknown kind."""
        return "R" in self.kinds and "O" not in self.kinds

    @property
    def dtype(self) -> str:
        """The dtype of the first buffer written."""
        return str(self.writes[0].dtype)

    @property
    def store(self) -> tirx.BufferStore | None:
        """The block's only statement if it is one store, else ``None``."""
        body = self.node.body
        return body if isinstance(body, tirx.BufferStore) else None


def static(extent: ir.Expr | int) -> int | None:
    """The value of a static extent; ``None`` if it is symbolic."""
    if isinstance(extent, int):
        return extent
    return int(extent) if isinstance(extent, tirx.IntImm) else None


def element_count(buffer: ir.Var) -> int | None:
    """How many elements a buffer has; ``None`` if a dimension is symbolic."""
    count = 1
    for dimension in buffer.shape:
        size = static(dimension)
        if size is None:
            return None
        count *= size
    return count


def blocks(schedule: s_tir.Schedule) -> list[BlockInfo]:
    """The leaf blocks of the function, in program order.

    Nested blocks are not opened: a lowered function has none, and a rule that finds a block
    whose body is not one store declines.
    """
    root = schedule.get_sblock("root")
    parameters = list(schedule.mod["main"].params)
    found = []
    for handle in schedule.get_child_blocks(root):
        node = schedule.get(handle)
        kinds = "".join(_KIND_LETTERS.get(item.iter_type, "O") for item in node.iter_vars)
        reads = _unique(region.source for region in node.reads)
        writes = _unique(region.source for region in node.writes)
        is_output = any(_contains(parameters, buffer) for buffer in writes)
        found.append(BlockInfo(handle, node, kinds, reads, writes, is_output))
    return found


def _unique(buffers: Iterable[ir.Var]) -> tuple[ir.Var, ...]:
    kept: list[ir.Var] = []
    for buffer in buffers:
        if not _contains(kept, buffer):
            kept.append(buffer)
    return tuple(kept)


def _contains(buffers: Sequence[ir.Var], wanted: ir.Var) -> bool:
    return any(buffer.same_as(wanted) for buffer in buffers)


def variables_of(expression: ir.Expr) -> list[ir.Var]:
    """Every scalar variable in an expression, without repeats."""
    found: list[ir.Var] = []

    def visit(variable: ir.Var) -> None:
        if ir.is_prim_var(variable) and not _contains(found, variable):
            found.append(variable)

    tvm_ffi.structural_walk(expression, (ir.Var, visit))
    return found


def loads_of(expression: ir.Expr) -> list[ir.TensorLoad]:
    """Every buffer load in an expression, in evaluation order, with repeats."""
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(expression, (ir.TensorLoad, found.append))
    return found


def calls_of(expression: ir.Expr) -> list[ir.Call]:
    """Every intrinsic call (exp, erf, if_then_else, ...) in an expression, with repeats."""
    found: list[ir.Call] = []
    tvm_ffi.structural_walk(expression, (ir.Call, found.append))
    return found


def producers(infos: Sequence[BlockInfo], block: BlockInfo) -> list[BlockInfo]:
    """The blocks that write a buffer which ``block`` reads."""
    return [
        info
        for info in infos
        if info is not block and any(_contains(block.reads, buffer) for buffer in info.writes)
    ]


def consumers(infos: Sequence[BlockInfo], block: BlockInfo) -> list[BlockInfo]:
    """The blocks that read a buffer which ``block`` writes."""
    return [
        info
        for info in infos
        if info is not block and any(_contains(info.reads, buffer) for buffer in block.writes)
    ]


def ancestors(infos: Sequence[BlockInfo], block: BlockInfo) -> list[BlockInfo]:
    """Every block that ``block`` depends on, in program order."""
    return _closure(infos, block, producers)


def descendants(infos: Sequence[BlockInfo], block: BlockInfo) -> list[BlockInfo]:
    """Every block that depends on ``block``, in program order."""
    return _closure(infos, block, consumers)


def _closure(
    infos: Sequence[BlockInfo],
    block: BlockInfo,
    step: Callable[[Sequence[BlockInfo], BlockInfo], list[BlockInfo]],
) -> list[BlockInfo]:
    reached: list[BlockInfo] = []
    frontier = [block]
    while frontier:
        for info in step(infos, frontier.pop()):
            if not any(info is known for known in reached):
                reached.append(info)
                frontier.append(info)
    return [info for info in infos if any(info is known for known in reached)]


def anchors(infos: Sequence[BlockInfo]) -> list[BlockInfo]:
    """The reduction blocks, in program order."""
    return [info for info in infos if info.is_reduction]


def is_copy(block: BlockInfo) -> bool:
    """Whether the block only moves elements of one buffer: its value is one plain load."""
    return (
        block.is_injective and block.store is not None and type(block.store.value) is ir.TensorLoad
    )


def is_reshape(block: BlockInfo) -> bool:
    """Whether the block moves every element of one buffer exactly once (reshape, transpose).

    Judged by the element counts, which must be static and equal; a slice has fewer, a broadcast
    more.
    """
    if not is_copy(block) or not block.reads:
        return False
    count = element_count(block.reads[0])
    return count is not None and count == element_count(block.writes[0])


@dataclass(frozen=True)
class Contraction:
    """A matrix multiplication as one reduction block: ``out += left[b, i, k] * right[b, j, k]``.

    Positions are indices into the block's iterators (and its loops, before any transformation).
    ``batch`` iterators index both operands, ``rows`` only ``left``, ``columns`` only ``right``;
    the last iterator of the output is a column, so ``right`` is the operand to load by vectors.
    """

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    reduction: tuple[int, ...]
    left: ir.TensorLoad
    right: ir.TensorLoad


def contraction_of(block: BlockInfo) -> Contraction | str:
    """The matrix multiplication that a reduction block computes, or why it is none.

    Accepts products of two loads, each with or without a cast, whose indices are plain block
    iterators or constants in any order (so transposed and batched forms, and matrix by vector),
    but not convolutions, whose indices are sums.
    """
    store = block.store
    if not block.is_reduction or store is None or block.node.init is None:
        return f"{block.name} is not a reduction of one statement"
    total = store.value
    if not isinstance(total, tirx.Add):
        return f"{block.name} does not reduce by a sum"
    terms = [total.a, total.b]
    terms = [term for term in terms if not _is_load_of(term, block.writes[0])]
    product = _without_cast(terms[0]) if len(terms) == 1 else None
    if not isinstance(product, tirx.Mul):
        return f"{block.name} does not sum products"
    loads = [_without_cast(product.a), _without_cast(product.b)]
    if not all(isinstance(load, ir.TensorLoad) for load in loads):
        return f"{block.name} multiplies something else than two tensors"
    iterators = block.iterators
    used: list[set[int]] = []
    for load in loads:
        positions = set()
        for index in load.indices:
            position = _position(iterators, index)
            if position is None and not isinstance(index, tirx.IntImm):
                return f"{block.name} indexes an operand by more than one iterator"
            if position is not None:
                positions.add(position)
        used.append(positions)
    spatial = [p for p, kind in enumerate(block.kinds) if kind == "S"]
    reduction = tuple(p for p, kind in enumerate(block.kinds) if kind == "R")
    if not all(p in used[0] and p in used[1] for p in reduction):
        return f"{block.name} has a reduction iterator that only one operand uses"
    written = [_position(iterators, index) for index in store.indices]
    ordered = [p for p in written if p is not None and static(block.extents[p]) != 1]
    left, right = 0, 1
    # The operand that the last long output dimension belongs to is the one read by vectors.
    if ordered and ordered[-1] in used[0] and ordered[-1] not in used[1]:
        left, right = 1, 0
    return Contraction(
        batch=tuple(p for p in spatial if p in used[0] and p in used[1]),
        rows=tuple(p for p in spatial if p not in used[right]),
        columns=tuple(p for p in spatial if p in used[right] and p not in used[left]),
        reduction=reduction,
        left=loads[left],
        right=loads[right],
    )


def _without_cast(expression: ir.Expr) -> ir.Expr:
    return expression.value if isinstance(expression, tirx.Cast) else expression


def _is_load_of(expression: ir.Expr, buffer: ir.Var) -> bool:
    return isinstance(expression, ir.TensorLoad) and expression.source.same_as(buffer)


def _position(iterators: Sequence[ir.Var], index: ir.Expr) -> int | None:
    for position, variable in enumerate(iterators):
        if index.same_as(variable):
            return position
    return None
