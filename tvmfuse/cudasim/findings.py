"""What the checker reports, with the lines of the printed CUDA source."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from dataclasses import dataclass

from tvmfuse.cudasim.source import FILE_NAME

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Site:
    """One access: line of the printed source (0: unknown), block and thread coordinates."""

    line: int
    block: Triple
    thread: Triple

    def __str__(self) -> str:
        return f"line {self.line}, block {self.block}, thread {self.thread}"


@dataclass(frozen=True)
class Finding:
    """One defect.

    ``kind`` is ``"write-write race"``, ``"read-after-write race"``, ``"write-after-read race"``,
    ``"out-of-bounds read"``, ``"out-of-bounds write"``, ``"uninitialised read"``,
    ``"misaligned access"`` or ``"divergent barrier"``; ``memory`` is ``"shared"``, ``"global"``
    or empty. ``other`` is the access that it conflicts with. ``count``: how often it happened.
    """

    kind: str
    memory: str
    kernel: str
    site: Site
    other: Site | None
    size: int
    count: int

    def __str__(self) -> str:
        memory = f" on {self.memory} memory" if self.memory else ""
        other = f"; the other access: {self.other}" if self.other else ""
        return f"{self.kernel}: {self.kind}{memory} at {self.site}{other} ({self.count} times)"


class _SiteRecord(ctypes.Structure):
    _fields_ = (
        ("offset", ctypes.c_uint64),
        ("line", ctypes.c_int),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
    )


class _FindingRecord(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_char_p),
        ("memory", ctypes.c_char_p),
        ("kernel", ctypes.c_char_p),
        ("library", ctypes.c_char_p),
        ("site", _SiteRecord),
        ("has_other", ctypes.c_int),
        ("other", _SiteRecord),
        ("size", ctypes.c_uint),
        ("count", ctypes.c_uint64),
    )


def read_findings(core: ctypes.CDLL, first: int) -> tuple[Finding, ...]:
    """Findings from number ``first`` on, in the order in which they were first seen."""
    findings = []
    record = _FindingRecord()
    for index in range(first, core.cudasim_finding_count()):
        core.cudasim_finding_get(index, ctypes.byref(record))
        library = record.library.decode()
        findings.append(
            Finding(
                kind=record.kind.decode(),
                memory=record.memory.decode(),
                kernel=record.kernel.decode(),
                site=_site(record.site, library),
                other=_site(record.other, library) if record.has_other else None,
                size=record.size,
                count=record.count,
            )
        )
    return tuple(findings)


def _site(record: _SiteRecord, library: str) -> Site:
    line = record.line or source_line(library, record.offset)
    block = (record.block[0], record.block[1], record.block[2])
    return Site(line, block, (record.thread[0], record.thread[1], record.thread[2]))


@functools.cache
def source_line(library: str, return_address: int) -> int:
    """Line of the printed source of the call that returns to the address; 0: unknown.

    Reads the line tables with binutils' ``addr2line``, which comes with every g++. Functions of
    the device that the compiler inlined are passed over: the line is that of the kernel.
    """
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None or return_address == 0:
        return 0
    command = (tool, "-i", "-e", library, hex(return_address - 1))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    for frame in result.stdout.splitlines():
        file, _, line = frame.split(" ")[0].rpartition(":")
        if file.endswith(FILE_NAME) and line.isdigit():
            return int(line)
    return 0
