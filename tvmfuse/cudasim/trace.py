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
