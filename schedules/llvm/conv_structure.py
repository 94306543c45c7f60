"""What a sliding-window group (convolution, depthwise convolution, pooling) looks like.

The three rules share one picture: some injective blocks produce the input (padding last), one
reduction slides a window over the rows and columns of a channels-last tensor, and some injective
blocks finish its result position by position.  Everything here only reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import ir, sym

from ..analysis import (
    BlockInfo,
    anchors,
    descendants,
    loads_of,
    static,
)

DENSE = "dense"
GROUPED = "grouped"
PER_CHANNEL = "per channel"


@dataclass(frozen=True)
class Window:
    """One window reduction ``out[n, y, x, f] op= data[n, y*sy + ry*dy, x*sx + rx*dx, c]``.

    ``weight`` is ``None`` for pooling.  ``channel_kind`` says how the input channel ``c`` follows
    from the output channel: all of them (``DENSE``), those of a group (``GROUPED``), or its own
    (``PER_CHANNEL``).  ``batch`` is 1 where it is symbolic; the other extents are static.
    """

    anchor: BlockInfo
    data: ir.Var
    weight: ir.Var | None
    batch: int
    height: int
    width: int
    channels: int
    taps: tuple[int, int]
    depth: int
    strides: tuple[int, int]
    channel_kind: str
    group_channels: int

    @property
    def reduction(self) -> int:
        """Terms summed per output element."""
        return self.taps[0] * self.taps[1] * self.depth

    @property
    def operations(self) -> int:
        """Scalar operations of the whole reduction (a multiply-add counts two)."""
        return 2 * self.batch * self.height * self.width * self.channels * self.reduction


def _coefficients(index: ir.Expr, variables: Sequence[ir.Var]) -> list[int] | None:
    """The integer factor of each variable in a linear index, else ``None``."""
    linear = sym.detect_linear_equation(index, list(variables))
    if len(linear) != len(variables) + 1:
        return None
    values = [static(item) for item in linear[:-1]]
    return None if None in values else [value for value in values if value is not None]


def _is_identity(indices: Sequence[ir.Expr], block: BlockInfo) -> bool:
    """Whether the indices are the block's iterators in order; 0 may stand for an extent of 1."""
    if len(indices) != len(block.iterators):
        return False
    return all(
        index.same_as(variable) or (static(index) == 0 and static(extent) == 1)
        for index, variable, extent in zip(indices, block.iterators, block.extents, strict=True)
    )


def find_window(infos: Sequence[BlockInfo]) -> Window | str:
    """The group's one window reduction over a channels-last tensor, or why there is none."""
    reductions = anchors(infos)
    if len(reductions) != 1:
        return f"the group has {len(reductions)} reductions; a window reduction has one"
    anchor = reductions[0]
    if anchor.kinds not in ("SSSSRRR", "SSSSRR"):
        return "the reduction has no iterators of a window over (n, y, x, channel)"
    if anchor.store is None:
        return "the reduction's body is not one store"
    extents = [static(extent) for extent in anchor.extents]
    if None in extents[1:]:
        return "the rows, columns, channels or window are not static"
    sizes = [extent or 1 for extent in extents]
    if not _is_output_layout(anchor):
        return "the reduction does not write its iterators (n, y, x, channel) in order"
    loads = [
        load
        for load in loads_of(anchor.store.value)
        if not load.source.same_as(anchor.store.buffer)
    ]
    has_weight = anchor.kinds == "SSSSRRR"
    if len(loads) != (2 if has_weight else 1):
        return f"the reduction reads {len(loads)} operands"
    first, second = loads[0], loads[1] if has_weight else None
    if (
        second is not None
        and _uses(first, anchor.iterators[3:4])
        and not _uses(second, anchor.iterators[3:4])
    ):
        first, second = second, first
    return _window(anchor, sizes, first, second)


@dataclass(frozen=True)
class ColumnReduction:
    """One reduction over all but the kept axes of a tensor whose innermost axis is kept.

    The mean over rows and columns of a channels-last image is the usual one.  ``outer`` counts
    the elements of the kept axes before the innermost (1 if symbolic), ``length`` the terms
    summed per element.
    """

    anchor: BlockInfo
    data: ir.Var
    outer: int
    channels: int
    length: int

    @property
    def operations(self) -> int:
        """Scalar operations of the reduction."""
        return self.outer * self.channels * self.length


def find_column_reduction(infos: Sequence[BlockInfo]) -> ColumnReduction | str:
    """The group's one reduction over outer axes, or why there is none."""
    reductions = anchors(infos)
    if len(reductions) != 1:
        return f"the group has {len(reductions)} reductions; a pooling has one"
    anchor = reductions[0]
    kept = anchor.kinds.count("S")
    if (
        anchor.store is None
        or kept == 0
        or anchor.kinds != "S" * kept + "R" * (len(anchor.kinds) - kept)
    ):
        return "the reduction is not one store over kept axes and then reduced axes"
    store, spatial = anchor.store, anchor.iterators[:kept]
    if len(store.indices) != kept or not all(
        index.same_as(variable) for index, variable in zip(store.indices, spatial, strict=True)
    ):
        return "the reduction does not write its iterators in order"
    loads = [load for load in loads_of(store.value) if not load.source.same_as(store.buffer)]
    if len(loads) != 1:
        return f"the reduction reads {len(loads)} operands"
    if not loads[0].indices[-1].same_as(spatial[-1]):
        return "the innermost axis of the input is reduced, not kept"
    extents = [static(extent) for extent in anchor.extents]
    if None in extents[kept - 1 :]:
        return "the innermost axis or a reduced axis is not static"
    sizes = [extent or 1 for extent in extents]
    return ColumnReduction(
        anchor, loads[0].source, prod(sizes[: kept - 1]), sizes[kept - 1], prod(sizes[kept:])
    )


def _is_output_layout(anchor: BlockInfo) -> bool:
    store = anchor.store
    return (
        store is not None
        and len(store.indices) == 4
        and all(
            index.same_as(variable)
            for index, variable in zip(store.indices, anchor.iterators[:4], strict=True)
        )
    )


def _uses(load: ir.TensorLoad, variables: Sequence[ir.Var]) -> bool:
    return any(index.same_as(variable) for index in load.indices for variable in variables)


def _window(
    anchor: BlockInfo, sizes: list[int], data: ir.TensorLoad, weight: ir.TensorLoad | None
) -> Window | str:
    iterators = anchor.iterators
    channel, row_tap, column_tap = iterators[3], iterators[4], iterators[5]
    if len(data.indices) != 4 or not data.indices[0].same_as(iterators[0]):
        return "the input is not a channels-last image"
    strides = []
    for index, position, tap in zip(
        data.indices[1:3], iterators[1:3], (row_tap, column_tap), strict=True
    ):
        factors = _coefficients(index, (position, tap))
        if factors is None:
            return "the input's row or column is not linear in the position and the tap"
        strides.append(factors[0])
    depth, kind, group = 1, PER_CHANNEL, sizes[3]
    if weight is None:
        if not data.indices[3].same_as(channel):
            return "the channel is not the innermost axis of the input (not channels-last)"
    else:
        inner, depth = iterators[6], sizes[6]
        expected = (row_tap, column_tap, inner, channel)
        if len(weight.indices) != 4 or not all(
            index.same_as(variable)
            for index, variable in zip(weight.indices, expected, strict=True)
        ):
            return "the weight is not laid out as (row tap, column tap, input, output channel)"
        factors = _coefficients(data.indices[3], (inner, channel))
        if data.indices[3].same_as(inner):
            kind = DENSE
        elif factors == [1, 1] and depth == 1:
            kind = PER_CHANNEL
        else:
            kind = GROUPED
            inputs = static(data.source.shape[3])
            if inputs is None or inputs % depth or sizes[3] % (inputs // depth):
                return "the input channels do not divide into groups"
            group = sizes[3] // (inputs // depth)
    return Window(
        anchor=anchor,
        data=data.source,
        weight=None if weight is None else weight.source,
        batch=sizes[0],
        height=sizes[1],
        width=sizes[2],
        channels=sizes[3],
        taps=(sizes[4], sizes[5]),
        depth=depth,
        strides=(strides[0], strides[1]),
        channel_kind=kind,
        group_channels=group,
    )


def injective_reason(infos: Sequence[BlockInfo], anchor: BlockInfo) -> str | None:
    """Why a block around the reduction cannot be inlined; ``None`` if all can."""
    for block in infos:
        if block is not anchor and (not block.is_injective or block.store is None):
            return f"block {block.name} is not one injective store"
    return None


def epilogue_reason(infos: Sequence[BlockInfo], anchor: BlockInfo) -> str | None:
    """Why the blocks after ``anchor`` cannot be applied to a register tile; ``None`` if they can.

    Each must compute its element at the position of the reduction's result, with no move.
    """
    reason = injective_reason(infos, anchor)
    if reason is not None:
        return reason
    after = descendants(infos, anchor)
    chain = [anchor, *after]
    for block in after:
        store = block.store
        if store is None or not _same_extents(block, anchor):
            return f"block {block.name} changes the shape of the window reduction's result"
        if not _is_identity(store.indices, block):
            return f"block {block.name} moves the window reduction's result"
        for load in loads_of(store.value):
            written = any(load.source.same_as(item) for link in chain for item in link.writes)
            if written and not _is_identity(load.indices, block):
                return f"block {block.name} reads the window reduction's result elsewhere"
    return None


def _same_extents(block: BlockInfo, anchor: BlockInfo) -> bool:
    kept = anchor.extents[: anchor.kinds.count("S")]
    if len(block.extents) != len(kept):
        return False
    for mine, other in zip(block.extents, kept, strict=True):
        if static(mine) != static(other) or (static(mine) is None and not mine.same_as(other)):
            return False
    return True


def is_plain_copy(block: BlockInfo) -> bool:
    """Whether the block copies one buffer element by element, without a move."""
    store = block.store
    return (
        store is not None
        and isinstance(store.value, ir.TensorLoad)
        and _is_identity(store.indices, block)
        and _is_identity(store.value.indices, block)
    )
