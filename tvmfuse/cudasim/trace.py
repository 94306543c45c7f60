"""What ran on the device, in order."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


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
            Counters(kernel=kernel, launches=times, matrix_flops=record.matrix_flops, **traffic)
        )
    return tuple(counters)


def counters_table(counters: tuple[Counters, ...]) -> str:
    """One line per kernel: transactions over the ideal, for each memory and direction."""

    def ratio(traffic: Traffic) -> str:
        if not traffic.requests:
            return f"{'-':>16}"
        return f"{traffic.transactions:>10} {traffic.transactions / traffic.ideal:>4.2f}x"

    head = f"{'kernel':<32} {'launches':>8} " + " ".join(f"{n:>16}" for n in _TRAFFIC)
    lines = [
        f"{c.kernel:<32} {c.launches:>8} " + " ".join(ratio(getattr(c, n)) for n in _TRAFFIC)
        for c in counters
    ]
    return "\n".join([head, *lines])
