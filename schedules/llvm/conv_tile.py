"""Choose the register tile and the parallel tasks of a convolution by counting cycles.

The model counts, per step of the reduction, the issue slots of the multiply-adds and of the loads
of one register tile (two loads and one full-width multiply-add per cycle, latency four), and per
task the copy of its padded input and the stream of its weights.  Only the ranking matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from .conv_structure import Window
from .machine import Machine

_LATENCY = 4.0
_TILE_START = 12.0
_STORE = 2.0
_RAGGED = 1.06
_COPY_ELEMENTS_PER_CYCLE = 6.0
_STREAM_BYTES_PER_CYCLE = 16.0


@dataclass(frozen=True)
class ConvPlan:
    """``rows * columns`` pixels times ``vectors * lanes`` output channels stay in registers.

    ``row_tasks`` and ``channel_tasks`` split the image rows and the output channels of a group
    over parallel tasks; ``parallel`` tells whether the work pays for the threads.
    """

    rows: int
    columns: int
    vectors: int
    lanes: int
    row_tasks: int
    channel_tasks: int
    parallel: bool


def divisors(number: int, limit: int | None = None) -> list[int]:
    """The divisors of ``number`` up to ``limit``, ascending."""
    bound = number if limit is None else min(number, limit)
    return [value for value in range(1, bound + 1) if number % value == 0]


def column_choices(width: int, limit: int) -> list[int]:
    """Tile widths: the divisors of ``width``, and a few others where it is long.

    LLVM moves the bounds check of a ragged last tile out of the reduction, so it costs little
    (measured on widths 31 to 149: at most 7 % below a dividing tile).
    """
    exact = divisors(width, limit)
    return exact + [size for size in (6, 8, 10) if size < min(width, limit) and size not in exact]


def _load_pieces(lanes: int) -> int:
    """How many power-of-two loads one vector of ``lanes`` needs."""
    return bin(lanes).count("1")


def _width(lanes: int, machine: Machine) -> float:
    """Issue slots of one operation on ``lanes`` lanes; half a register counts half."""
    return 0.5 if 2 * lanes <= machine.lanes else float(-(-lanes // machine.lanes))


def lane_choices(channels: int, machine: Machine) -> list[int]:
    """Vector lengths that divide ``channels``; all of them at once where no divisor is good.

    LLVM cuts a vector of any length into registers, so 37 channels become three.
    """
    choices = divisors(channels, machine.lanes)
    if choices[-1] < machine.lanes // 4 and channels <= 8 * machine.lanes:
        choices.append(channels)
    return choices


def vector_lanes(channels: int, machine: Machine) -> int:
    """The vector length with the least work per channel; the longer of equals."""
    return min(
        lane_choices(channels, machine),
        key=lambda lanes: ((_width(lanes, machine) + 0.1 * _load_pieces(lanes)) / lanes, -lanes),
    )


def _step_cycles(pixels: int, vectors: int, lanes: int, machine: Machine) -> float:
    """Cycles of one reduction step of a register tile."""
    width = _width(lanes, machine)
    arithmetic = pixels * vectors * width
    loads = pixels * 0.5 + vectors * _load_pieces(lanes) * width
    return max(arithmetic, loads, _LATENCY) + 0.5


def _tiles(window: Window, machine: Machine) -> list[tuple[float, int, int, int, int]]:
    """(cycles per element, rows, columns, vectors, lanes) of every tile that fits, best first."""
    found = []
    columns = column_choices(window.width, machine.vector_registers - 2)
    rows = divisors(window.height, 1 if window.width > 8 else machine.vector_registers - 2)
    for lanes in lane_choices(window.group_channels, machine):
        registers = -(-lanes // machine.lanes)
        for vectors in divisors(window.group_channels // lanes, machine.vector_registers - 2):
            for high, wide in product(rows, columns):
                pixels = high * wide
                if (pixels + 1) * vectors * registers + 2 > machine.vector_registers:
                    continue
                step = _step_cycles(pixels, vectors, lanes, machine)
                cycles = window.reduction * step + _TILE_START + _STORE * pixels * vectors
                cycles *= 1.0 if window.width % wide == 0 else _RAGGED
                found.append((cycles / (pixels * vectors * lanes), high, wide, vectors, lanes))
    return sorted(found, key=lambda item: (item[0], -item[1] * item[2] * item[3], item))[:24]


def plan_convolution(
    window: Window, machine: Machine, staged: bool, whole_channels: bool = False
) -> ConvPlan:
    """The plan with the least estimated time.

    ``staged`` tells that each task copies its padded input; ``whole_channels`` that a task needs
    all output channels.
    """
    groups = window.channels // window.group_channels
    parallel = machine.cores > 1 and window.operations >= 2 * machine.grain * machine.lanes
    best: tuple[float, ConvPlan] | None = None
    for cost, rows, columns, vectors, lanes in _tiles(window, machine):
        row_choices = divisors(window.height // rows) if parallel or staged else [1]
        blocks = window.group_channels // (vectors * lanes)
        for row_tasks, channel_tasks in product(row_choices, divisors(blocks, 4 * machine.cores)):
            if channel_tasks > 1 and (whole_channels or not parallel):
                continue
            tasks = window.batch * row_tasks * groups * channel_tasks
            height = window.height // row_tasks
            channels = window.group_channels // channel_tasks
            cycles = cost * height * window.width * channels + 500.0
            cycles += window.reduction * channels * 4 / _STREAM_BYTES_PER_CYCLE
            if staged:
                copied = (
                    ((height - 1) * window.strides[0] + window.taps[0])
                    * ((window.width - 1) * window.strides[1] + window.taps[1])
                    * window.depth
                )
                cycles += copied / _COPY_ELEMENTS_PER_CYCLE
                if 4 * copied > machine.l2_bytes // 2:
                    cycles *= 2.0
            total = cycles * -(-tasks // (machine.cores if parallel else 1))
            plan = ConvPlan(rows, columns, vectors, lanes, row_tasks, channel_tasks, parallel)
            if best is None or total < best[0] * 0.999:
                best = (total, plan)
    if best is None:
        raise ValueError("no register tile fits this convolution")
    return best[1]
