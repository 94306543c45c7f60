"""Recognise a contraction: a matrix multiplication, or a convolution read as one.

The classification of iterators (batch, rows, columns, reduction) is the usual one for GEMM-like
programs: an iterator's role follows from which of the two operands and the result it indexes.
Convolutions fall under it too (implicit GEMM): their window offsets are reduction iterators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

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
    used = [names(load.indices) for load in (first, second)]
    written = names(update.indices)
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
    steps = [main.extents[at] for at, role in enumerate(roles) if role == "K"]
    if all(analysis.static(extent) == 1 for extent in steps):
        # Padding such a reduction would add the one product several times.
        return f"block {main.name} sums one product only"
    positions = [_position(main, load.source) for load in (first, second)]
    if swapped:
        positions.reverse()
    return Contraction(main, "".join(roles), positions[0], positions[1])


def _owns_last(update: tirx.BufferStore, used: list[set[str]]) -> bool:
    """Whether the *first* operand owns the innermost result index that one operand owns alone."""
    for index in reversed(list(update.indices)):
        for name in names([index]):
            if (name in used[0]) != (name in used[1]):
                return name in used[0]
    return False


def _position(main: BlockInfo, buffer: ir.Var) -> int:
    return next(
        position for position, region in enumerate(main.node.reads) if region.source.same_as(buffer)
    )


def names(indices: Sequence[ir.Expr]) -> set[str]:
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
