"""What the schedules need to know about the CPU, read from the target and from nothing else.

The target's ``mcpu`` and ``mattr`` decide the vector width; the cache sizes are those of today's
server cores and only steer block sizes, so a wrong guess costs time, never correctness.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.target import Target
from tvm.target.codegen import target_has_features

#: Default number of cores where the target gives no ``num-cores``.
_DEFAULT_CORES = 4


@dataclass(frozen=True)
class Machine:
    """The facts that a schedule decides on.

    ``vector_registers`` counts registers of ``vector_bits`` bits.  ``grain`` is the least work,
    in scalar operations, for which starting a parallel task pays (a fork and a join through
    TVM's thread pool cost 5-10 microseconds).  Cache sizes are bytes per core.
    """

    vector_bits: int
    vector_registers: int
    cores: int
    l1_bytes: int
    l2_bytes: int
    grain: int

    @property
    def lanes(self) -> int:
        """float32 lanes of one vector register."""
        return self.vector_bits // 32

    def lanes_of(self, dtype: str) -> int:
        """Lanes of one vector register for a dtype, e.g. 32 float16 lanes in 512 bits."""
        digits = "".join(letter for letter in dtype if letter.isdigit())
        return max(1, self.vector_bits // max(8, int(digits) if digits else 8))


def machine_of(target: Target) -> Machine:
    """The machine of an ``llvm`` target.

    Raises ``ValueError`` for a target of another kind.
    """
    if target.kind.name != "llvm":
        raise ValueError(f"a CPU schedule needs an llvm target, not {target.kind.name}")
    # LLVM's own vector width query answers 512 for every x86 CPU, so the features are asked.
    if target_has_features("avx512f", target):
        vector_bits, registers = 512, 32
    elif target_has_features("avx", target):
        vector_bits, registers = 256, 16
    elif target_has_features("neon", target):
        vector_bits, registers = 128, 32
    else:
        vector_bits, registers = 128, 16
    cores = target.attrs.get("num-cores")
    return Machine(
        vector_bits=vector_bits,
        vector_registers=registers,
        cores=max(1, int(cores)) if cores is not None else _DEFAULT_CORES,
        l1_bytes=32 * 1024,
        l2_bytes=1024 * 1024,
        grain=20_000,
    )
