"""What a schedule must know of an NVIDIA GPU, read from the target."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvm.target import Target

STATIC_SHARED_BYTES = 48 * 1024
"""Statically declared shared memory per block, on every architecture."""

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the largest
# shared memory a block may opt into, in KiB.
_SHARED_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}
# Multiprocessors of the largest common product of each architecture (T4, A100, RTX 3090, Orin,
# RTX 4090, H100, B200, B300, RTX 5090).  Only used to judge whether a grid is too small.
_MULTIPROCESSORS = {
    75: 40, 80: 108, 86: 82, 87: 16, 89: 128, 90: 132, 100: 148, 103: 148, 120: 170,
}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """One CUDA architecture's limits; sizes in bytes.

    ``shared_limit`` is what one block may use at most (above 48 KiB only as dynamic shared
    memory); ``registers`` is the number of 32-bit registers a block may use.
    """

    arch: int
    warp: int
    max_threads: int
    shared_limit: int
    registers: int
    multiprocessors: int

    @classmethod
    def of(cls, target: Target) -> Machine:
        """The machine of a CUDA target.

        Raises ``ValueError`` for another kind of target, or an arch that is not ``sm_NN``.
        """
        if target.kind.name != "cuda":
            raise ValueError(f"expected a cuda target, got kind {target.kind.name!r}")
        attributes = target.attrs
        arch = arch_number(str(attributes.get("arch", "")))
        known = max((number for number in _SHARED_KIB if number <= arch), default=75)
        shared = _SHARED_KIB[known] * 1024
        stated = int(attributes.get("max_shared_memory_per_block", STATIC_SHARED_BYTES))
        # TVM's tags state 48 KiB, the limit without opting in; any other figure is the user's.
        if stated != STATIC_SHARED_BYTES:
            shared = min(shared, stated)
        return cls(
            arch=arch,
            warp=int(attributes.get("thread_warp_size", 32)),
            max_threads=int(attributes.get("max_threads_per_block", 1024)),
            shared_limit=shared,
            registers=int(attributes.get("registers_per_block", 65536)),
            multiprocessors=_MULTIPROCESSORS[known],
        )


def arch_number(arch: str) -> int:
    """The number in an arch name: ``sm_90a`` -> 90, ``sm_120`` -> 120."""
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    if match is None:
        raise ValueError(f"expected an arch such as 'sm_90a', got {arch!r}")
    return int(match.group(1))
