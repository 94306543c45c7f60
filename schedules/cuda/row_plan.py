"""How many lanes work on a row, how many rows a thread block takes, and along which axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir

from .. import analysis
from ..analysis import BlockInfo
from . import access, nest
from .machine import Machine
from .row_space import RowSpace

COLUMNS = 32
"""Rows per thread block where neighbouring rows, not a row's elements, are contiguous."""


@dataclass(frozen=True)
class RowPlan:
    """The decided kernel shape: ``rows`` rows per thread block with ``lanes`` threads each.

    With ``columns`` the rows run along threadIdx.x, because neighbouring rows are neighbours in
    memory; otherwise the lanes do.
    """

    space: RowSpace
    rows: int
    lanes: int
    columns: bool


def plan(infos: Sequence[BlockInfo], space: RowSpace, machine: Machine) -> RowPlan:
    """Decide lanes and rows per thread block from the length and the number of the rows."""
    length = 1
    for block, positions in zip(infos, space.positions, strict=True):
        if positions is not None:
            size = nest.product(_others(block, positions))
            length = max(length, size if isinstance(size, int) else 1024)
    columns = reads_columns(infos, space)
    count = nest.product(list(space.extents))
    if columns:
        rows = COLUMNS
        lanes = min(_power_of_two(max(1, length // 8)), 16)
        return RowPlan(space, rows, lanes, columns=True)
    lanes = machine.warp
    while lanes < 1024 and lanes * 8 < length:
        lanes *= 2
    if isinstance(count, int):
        idle = machine.multiprocessors * 128
        while lanes < 1024 and lanes * 4 <= length and count * lanes < idle:
            lanes *= 2
    rows = max(1, 128 // lanes)
    if not isinstance(count, int) and any(
        is_shared_row(infos, space, n) for n in range(len(infos))
    ):
        rows = 1  # the last thread block's part of a shared buffer would have a symbolic size
    if isinstance(count, int):
        while rows > 1 and (count % rows or count // rows < machine.multiprocessors):
            rows //= 2
    return RowPlan(space, rows, lanes, columns=False)


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()


def _others(block: BlockInfo, positions: tuple[int, ...]) -> list[ir.Expr]:
    return [extent for number, extent in enumerate(block.extents) if number not in positions]


def reads_columns(infos: Sequence[BlockInfo], space: RowSpace) -> bool:
    """Whether neighbouring rows, rather than a row's elements, are contiguous in the inputs.

    Judged on the loads of full size in reductions: the last index is the last row iterator.
    """
    columns = lanes = 0
    for block, positions in zip(infos, space.positions, strict=True):
        if not positions or not block.is_reduction or block.store is None:
            continue
        analyzer = access.bound_analyzer(block)
        for load in analysis.loads_of(block.store.value):
            if load.source.same_as(block.store.buffer) or not load.indices:
                continue
            used = analysis.variables_of(analyzer.simplify(load.indices[-1]))
            if any(variable.same_as(block.iterators[positions[-1]]) for variable in used):
                columns += 1
            elif used:
                lanes += 1
    return columns > lanes


def is_shared_row(infos: Sequence[BlockInfo], space: RowSpace, number: int) -> bool:
    """Whether a block's result is an intermediate with several elements per row.

    One element per row stays in the registers of the lanes that reduced it.
    """
    block, positions = infos[number], space.positions[number]
    if block.is_output or positions is None:
        return False
    free = [
        extent
        for n, (kind, extent) in enumerate(zip(block.kinds, block.extents, strict=True))
        if kind == "S" and n not in positions
    ]
    return not block.is_reduction or nest.product(free) != 1
