"""Bring a group around one contraction to the form ``C[s, i, j] += A[s, k, i] * B[s, k, j]``.

The classification of iterators (batch, rows, columns, reduction) is the usual one for GEMM-like
programs: an iterator's role follows from which of the two operands and the result it indexes.
Convolutions fall under it too (implicit GEMM): their window offsets are reduction iterators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.sym.iter_affine_map import IterMapLevel

from .. import analysis
from ..analysis import BlockInfo


@dataclass(frozen=True)
class Contraction:
    """The one contraction of a group.

    ``roles`` has one letter per block iterator: S (batch), I (rows), J (columns), K (reduced).
    ``left`` and ``right`` are positions in the block's list of reads; columns are the role that
    owns the result's last dimension, so that neighbouring threads write neighbouring elements.
    """

    block: BlockInfo
    roles: str
    left: int
    right: int

    def extent(self, role: str) -> int | None:
        """The product of the extents of ``role``; ``None`` if one of them is symbolic."""
        product = 1
        for letter, extent in zip(self.roles, self.block.extents, strict=True):
            size = analysis.static(extent)
            if letter == role:
                if size is None:
                    return None
                product *= size
        return product

    @property
    def is_matmul(self) -> bool:
        """Whether every index of the operands is one iterator or a constant."""
        loads = analysis.loads_of(self.block.node.body.value)
        indices = [index for load in loads for index in load.indices]
        return all(ir.is_prim_var(i) or not analysis.variables_of(i) for i in indices)


@dataclass(frozen=True)
class Normal:
    """The normalised group: handles of the contraction, of its two operands' fetches, and of the
    blocks that write the outputs, each of which iterates over ``(s, i, j)``."""

    main: SBlockRV
    left: SBlockRV
    right: SBlockRV
    outputs: tuple[SBlockRV, ...]


def find(infos: Sequence[BlockInfo]) -> Contraction | str:
    """The group's only contraction, or why there is none."""
    reductions = analysis.anchors(infos)
    if len(reductions) != 1:
        return f"the group has {len(reductions)} reductions; a matmul kernel has one"
    odd = [info for info in infos if info is not reductions[0] and not info.is_injective]
    if odd:
        return f"block {odd[0].name} is neither injective nor the contraction"
    reason = _neighbours(infos, reductions[0])
    return reason if reason is not None else classify(reductions[0])


def _neighbours(infos: Sequence[BlockInfo], main: BlockInfo) -> str | None:
    """Why the blocks around the contraction cannot be folded into its kernel, or ``None``."""
    before = analysis.ancestors(infos, main)
    after = analysis.descendants(infos, main)
    for info in infos:
        if info is main:
            continue
        if info.store is None:
            return f"block {info.name} is not one store"
        if info.is_output and any(info is other for other in before):
            return f"block {info.name} writes an output that the contraction reads"
        if info.is_output and not any(info is other for other in after):
            return f"block {info.name} writes an output that does not depend on the contraction"
    return None


def classify(main: BlockInfo) -> Contraction | str:
    """Read a reduction block as a contraction, or say why it is not one."""
    operands = _operands(main)
    if isinstance(operands, str):
        return operands
    update, first, second = operands
    if first.source.same_as(second.source):
        return "both operands are the same buffer"
    used = [_names(load.indices) for load in (first, second)]
    written = _names(update.indices)
    roles, swapped = [], _owns_last(update, used)
    for variable, kind, extent in zip(main.iterators, main.kinds, main.extents, strict=True):
        in_first, in_second = variable.name in used[0], variable.name in used[1]
        if kind == "R":
            if not (in_first and in_second) and analysis.static(extent) != 1:
                return f"iterator {variable.name} reduces one operand only"
            roles.append("K")
        elif analysis.static(extent) == 1 and not in_first and not in_second:
            roles.append("I")
        elif variable.name not in written:
            return f"spatial iterator {variable.name} does not index the result"
        elif in_first and in_second:
            roles.append("S")
        elif in_first or in_second:
            roles.append("J" if in_second != swapped else "I")
        else:
            return f"iterator {variable.name} indexes neither operand"
    positions = [_position(main, load.source) for load in (first, second)]
    if swapped:
        positions.reverse()
    return Contraction(main, "".join(roles), positions[0], positions[1])


def _owns_last(update: tirx.BufferStore, used: list[set[str]]) -> bool:
    """Whether the *first* operand owns the innermost result index that one operand owns alone."""
    for index in reversed(list(update.indices)):
        for name in _names([index]):
            if (name in used[0]) != (name in used[1]):
                return name in used[0]
    return False


def _position(main: BlockInfo, buffer: ir.Var) -> int:
    return next(
        position for position, region in enumerate(main.node.reads) if region.source.same_as(buffer)
    )


def _names(indices: Sequence[ir.Expr]) -> set[str]:
    """The variables of an index expression; block variables have unique names in their block."""
    return {v.name for index in indices for v in analysis.variables_of(index)}


def _operands(
    main: BlockInfo,
) -> tuple[tirx.BufferStore, ir.TensorLoad, ir.TensorLoad] | str:
    """The update statement and the two loads that it multiplies."""
    update = main.store
    if update is None:
        return f"block {main.name} is not one store"
    if main.node.init is None:
        return f"block {main.name} has no initial value"
    total = update.value
    if type(total) is not tirx.Add:
        return f"block {main.name} does not sum"
    own = [_strip(side) for side in (total.a, total.b)]
    terms = [side for side in own if not _is_load_of(side, update.buffer)]
    if len(terms) != 1 or type(terms[0]) is not tirx.Mul:
        return f"block {main.name} does not sum products"
    first, second = _strip(terms[0].a), _strip(terms[0].b)
    if not isinstance(first, ir.TensorLoad) or not isinstance(second, ir.TensorLoad):
        return f"block {main.name} does not multiply two loads"
    return update, first, second


def _strip(expression: ir.Expr) -> ir.Expr:
    """Without the casts to the accumulation dtype."""
    while isinstance(expression, tirx.Cast):
        expression = expression.value
    return expression


def _is_load_of(expression: ir.Expr, buffer: ir.Var) -> bool:
    return isinstance(expression, ir.TensorLoad) and expression.source.same_as(buffer)


def normalise(
    schedule: s_tir.Schedule, contraction: Contraction, padding: tuple[int, int, int]
) -> Normal:
    """Rewrite the group to the normal form, rows, columns and reduction padded to multiples.

    The operands are read through new ``shared`` buffers laid out ``(s, k, i)`` and ``(s, k, j)``,
    so that a thread reads neighbouring rows (columns) of one ``k`` as one vector; every producer is
    inlined into these fetches.  Every block between the contraction and an output is inlined into
    the output, whose iterators become ``(s, i, j)``.
    """
    main = contraction.block.handle
    reindex(schedule, contraction)
    schedule.pad_einsum(main, [1, *padding])
    left = schedule.cache_read(main, contraction.left, "shared")
    right = schedule.cache_read(main, contraction.right, "shared")
    inline_producers(schedule, (left, right))
    schedule.set_scope(main, 0, "local")
    outputs = inline_consumers(schedule, main)
    for output in outputs:
        iterate_over_result(schedule, main, output)
    return Normal(main, left, right, tuple(outputs))


def obstacle(schedule: s_tir.Schedule, contraction: Contraction) -> str | None:
    """Why the group has no normal form, or ``None``; ``schedule`` is used up by the attempt."""
    try:
        normalise(schedule, contraction, (1, 1, 1))
    except ValueError as error:
        return str(error)
    except (s_tir.ScheduleError, tvm.error.InternalError) as error:
        return f"the group has no normal form: {str(error).strip().splitlines()[-1]}"
    return None


def reindex(schedule: s_tir.Schedule, contraction: Contraction, left: str = "SKI") -> None:
    """Give operands and result buffers of their own with the axes (s, k, i), (s, k, j), (s, i, j).

    ``left`` is the order of the left operand's axes.
    """
    block, roles = contraction.block, contraction.roles
    loads = {"I": contraction.left, "J": contraction.right}
    for own in ("I", "J"):
        schedule.reindex(block.handle, ("read", loads[own]))
    schedule.reindex(block.handle, ("write", 0))
    node = schedule.get(block.handle)
    extents = [iterator.dom.extent for iterator in node.iter_vars]
    for own, position in loads.items():
        used = _names([axis.min for axis in node.reads[position].region])
        kept = [at for at, it in enumerate(node.iter_vars) if it.var.name in used]
        order = left if own == "I" else "SKJ"
        map_ = fused_map([roles[at] for at in kept], [extents[at] for at in kept], order)
        schedule.transform_layout(block.handle, ("read", position), map_)
    used = _names([axis.min for axis in node.writes[0].region])
    kept = [at for at, it in enumerate(node.iter_vars) if it.var.name in used]
    map_ = fused_map([roles[at] for at in kept], [extents[at] for at in kept], "SIJ")
    schedule.transform_layout(block.handle, ("write", 0), map_)
    schedule.transform_block_layout(block.handle, fused_map(roles, extents, "SIJK"))


def simplified(
    schedule: s_tir.Schedule, handles: Sequence[SBlockRV]
) -> tuple[s_tir.Schedule, list[SBlockRV]]:
    """A schedule of the same function with simpler index expressions, and the blocks in it.

    ``transform_block_layout`` leaves ``(j // 32 + s) % 12`` where ``s`` is meant, which later
    primitives do not see through.  The trace starts anew.
    """
    nodes = [info.node for info in analysis.blocks(schedule)]
    positions = [
        next(at for at, node in enumerate(nodes) if node.same_as(schedule.get(handle)))
        for handle in handles
    ]
    fresh = s_tir.Schedule(s_tir.transform.StmtSimplify()(schedule.mod))
    infos = analysis.blocks(fresh)
    return fresh, [infos[at].handle for at in positions]


def fused_map(roles: Sequence[str], extents: Sequence[ir.Expr], order: str) -> tirx.IndexMap:
    """The map that fuses, per role of ``order``, the axes of that role in row-major order."""
    axes = [tirx.Var(f"x{at}", "int64") for at in range(len(roles))]
    fused: dict[str, ir.Expr] = {}
    for axis, role, extent in zip(axes, roles, extents, strict=True):
        fused[role] = fused[role] * extent + axis if role in fused else axis
    zero = tirx.IntImm("int64", 0)
    return tirx.IndexMap(axes, [fused.get(role, zero) for role in order], None)


def inline_producers(schedule: s_tir.Schedule, fetches: Sequence[SBlockRV]) -> None:
    """Inline everything that the fetches depend on."""
    infos = analysis.blocks(schedule)
    wanted = [schedule.get(fetch) for fetch in fetches]
    roots = [info for info in infos if any(info.node.same_as(node) for node in wanted)]
    producers = [
        info
        for info in infos
        if any(info is other for root in roots for other in analysis.ancestors(infos, root))
    ]
    for info in producers:
        schedule.compute_inline(info.handle)


def inline_consumers(schedule: s_tir.Schedule, main: SBlockRV) -> list[SBlockRV]:
    """Inline everything between ``main`` and the outputs; each output then reads ``main`` only."""
    _split_chained_outputs(schedule, main)
    for info in _after(schedule, main):
        if not info.is_output:
            schedule.compute_inline(info.handle)
    # What is left to inline are constants of the epilogue, which depend on no block at all.
    infos = analysis.blocks(schedule)
    outputs = [info for info in infos if info.is_output]
    for output in outputs:
        for info in analysis.ancestors(infos, output):
            if info.is_injective and not info.is_output and not _is_kept(infos, info, outputs):
                schedule.compute_inline(info.handle)
    return [info.handle for info in outputs]


def _is_kept(infos: Sequence[BlockInfo], info: BlockInfo, outputs: Sequence[BlockInfo]) -> bool:
    """Whether a producer belongs to the contraction (its fetch) and not to an epilogue."""
    return any(user.is_reduction for user in analysis.consumers(infos, info))


def _after(schedule: s_tir.Schedule, main: SBlockRV) -> list[BlockInfo]:
    infos = analysis.blocks(schedule)
    node = schedule.get(main)
    root = next(info for info in infos if info.node.same_as(node))
    return analysis.descendants(infos, root)


def _split_chained_outputs(schedule: s_tir.Schedule, main: SBlockRV) -> None:
    """Let an output that others read be computed into a register, then copied.

    The readers take the register, so no thread reads global memory that the kernel writes.
    """
    for info in _after(schedule, main):
        infos = analysis.blocks(schedule)
        current = next(other for other in infos if other.name == info.name)
        users = analysis.consumers(infos, current)
        if current.is_output and users:
            handles = [user.handle for user in users]
            schedule.cache_write(current.handle, 0, "local", consumer_blocks=handles)


def iterate_over_result(schedule: s_tir.Schedule, main: SBlockRV, output: SBlockRV) -> None:
    """Order an output block's loops as ``(..., s, i, j)``, by the result element that it reads.

    Where an output visits each element of the result once (an elementwise epilogue, a reshape, a
    transpose), its iterators become ``s, i, j`` themselves.  Where it takes a slice, or visits
    each element several times (a broadcast), its loops are only reordered; the guards come from
    ``reverse_compute_at``.  Raises ``ValueError`` for any other access.
    """
    node = schedule.get(output)
    indices = result_indices(node, schedule.get(main).writes[0].source)
    if isinstance(indices, str):
        raise ValueError(indices)
    axes = [iterator.var for iterator in node.iter_vars]
    ranges = {iterator.var: iterator.dom for iterator in node.iter_vars}
    level = IterMapLevel.Bijective
    at_origin = all(_at_zero(index, axes) == 0 for index in indices)
    if at_origin and sym.detect_iter_map(indices, ranges, check_level=level).indices:
        schedule.transform_block_layout(output, tirx.IndexMap(axes, indices, None))
        return
    order = [_translated(index, axes) for index in indices if analysis.variables_of(index)]
    if None in order or len(set(order)) != len(order):
        raise ValueError(f"block {node.name_hint} gathers from the contraction: {indices}")
    loops = schedule.get_loops(output)
    free = [at for at in range(len(loops)) if at not in order]
    schedule.reorder(*(loops[at] for at in [*free, *order]))


def _at_zero(index: ir.Expr, axes: Sequence[ir.Var]) -> int | None:
    """The value of an index where all iterators are 0; ``None`` if it is symbolic."""
    zeros = [tirx.IntImm("int64", 0) for _ in axes]
    value = tirx.IndexMap(axes, [index], None).map_indices(zeros)[0]
    return analysis.static(sym.Analyzer().simplify(value))


def _translated(index: ir.Expr, axes: Sequence[ir.Var]) -> int | None:
    """The position of the axis that ``index`` is a constant offset from, else ``None``."""
    for at, axis in enumerate(axes):
        if analysis.static(sym.Analyzer().simplify(index - axis)) is not None:
            return at
    return None


def result_indices(node: s_tir.SBlock, result: ir.Var) -> list[ir.Expr] | str:
    """The one place of ``result`` that a block reads, simplified, or why there is not one."""
    analyzer = sym.Analyzer()
    for iterator in node.iter_vars:
        analyzer.bind(iterator.var, iterator.dom)
    found: list[list[ir.Expr]] = []
    for load in analysis.loads_of(node.body.value):
        if load.source.same_as(result):
            indices = [analyzer.simplify(index) for index in load.indices]
            if not any(_same(indices, known) for known in found):
                found.append(indices)
    if len(found) != 1:
        return f"block {node.name_hint} reads {len(found)} elements of the contraction at a time"
    return found[0]


def _same(left: Sequence[ir.Expr], right: Sequence[ir.Expr]) -> bool:
    return all(tvm_ffi.structural_equal(a, b) for a, b in zip(left, right, strict=True))
