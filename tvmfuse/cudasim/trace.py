"""What ran on the device, in order."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass

from tvmfuse.cudasim.flops import read_flops


@dataclass(frozen=True)
class Launch:
    """One kernel launch."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int


@dataclass(frozen=True)
class Traffic:
    """Accesses of one kind. ``transactions``: 32-byte sectors, or passes over the banks.

    ``ideal`` is the least number of transactions that could move what was asked for.
    """

    requests: int
    bytes: int
    transactions: int
    ideal: int


@dataclass(frozen=True)
class Counters:
    """What the launches of one kernel did to memory, and their tensor-core operations."""

    kernel: str
    launches: int
    global_read: Traffic
    global_write: Traffic
    shared_read: Traffic
    shared_write: Traffic
    matrix_flops: int
    scalar_operations: dict[str, int]  # by kind, see flops.py


class _Record(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_shared", ctypes.c_ulonglong),
    )


def read_launches(core: ctypes.CDLL, first: int) -> tuple[Launch, ...]:
    """Launches from number ``first`` on."""
    launches = []
    record = _Record()
    for index in range(first, core.cudasim_launch_count()):
        core.cudasim_launch_get(index, ctypes.byref(record))
        grid = (record.grid[0], record.grid[1], record.grid[2])
        block = (record.block[0], record.block[1], record.block[2])
        launches.append(Launch(record.kernel.decode(), grid, block, record.dynamic_shared))
    return tuple(launches)


class _TrafficRecord(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in Traffic.__dataclass_fields__)


_TRAFFIC = ("global_read", "global_write", "shared_read", "shared_write")


class _CountersRecord(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        *((name, _TrafficRecord) for name in _TRAFFIC),
        ("matrix_flops", ctypes.c_uint64),
    )


def read_counters(core: ctypes.CDLL, launches: tuple[Launch, ...]) -> tuple[Counters, ...]:
    """Counters of every kernel that a traced session ran, by name."""
    counters = []
    operations = read_flops(core)
    record = _CountersRecord()
    for index in range(core.cudasim_counters_count()):
        core.cudasim_counters_get(index, ctypes.byref(record))
        kernel = record.kernel.decode()
        traffic = {
            name: Traffic(
                *(getattr(getattr(record, name), f) for f in Traffic.__dataclass_fields__)
            )
            for name in _TRAFFIC
        }
        times = sum(launch.kernel == kernel for launch in launches)
        counters.append(
            Counters(
                kernel=kernel,
                launches=times,
                matrix_flops=record.matrix_flops,
                scalar_operations=operations.get(kernel, {}),
                **traffic,
            )
        )
    return tuple(counters)


def counters_table(counters: tuple[Counters, ...]) -> str:
    """Per kernel: transactions over the ideal for each memory and direction, and operations."""

    def ratio(traffic: Traffic) -> str:
        if not traffic.requests:
            return f"{'-':>16}"
        return f"{traffic.transactions:>10} {traffic.transactions / traffic.ideal:>4.2f}x"

    def operations(kernel: Counters) -> str:
        counted = {**kernel.scalar_operations, "matrix": kernel.matrix_flops}
        return ", ".join(f"{kind} {times}" for kind, times in counted.items() if times)

    head = f"{'kernel':<40} {'launches':>8} " + " ".join(f"{n:>16}" for n in _TRAFFIC)
    lines = [
        f"{c.kernel:<40} {c.launches:>8} "
        + " ".join(ratio(getattr(c, n)) for n in _TRAFFIC)
        + f"  {operations(c)}"
        for c in counters
    ]
    explanation = (
        "global: 32-byte sectors, shared: passes over the banks; x: over the least possible"
    )
    return "\n".join([f"{head}  operations", *lines, explanation])


def launches_table(launches: tuple[Launch, ...]) -> str:
    """One line per launch, in order; equal ones that follow each other share a line."""
    lines = [f"{'kernel':<40} {'times':>5} {'grid':>18} {'block':>14} {'dynamic shared':>14}"]
    for launch, group in itertools.groupby(launches):
        grid, block = ("x".join(map(str, size)) for size in (launch.grid, launch.block))
        lines.append(
            f"{launch.kernel:<40} {len(list(group)):>5} {grid:>18} {block:>14} "
            f"{launch.dynamic_shared:>14}"
        )
    return "\n".join(lines)
