"""Count the scalar floating-point operations of traced kernels.

An instrumented kernel tells how often it came to each of its basic blocks
(``-fsanitize-coverage=trace-pc``); a block's operations are read off its machine code. That counts
what ran, also in loops of unknown length and behind bound checks. Machine code of x86-64 without
vectorisation (``-O1``); on other processors nothing is counted.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import re
import shutil
import subprocess

_HOOK = "__sanitizer_cov_trace_pc"
_LINE = re.compile(r"^\s*([0-9a-f]+):\t(\w+)\s*(.*)$")
_SCALAR = re.compile(r"^v?(add|sub|mul|div|sqrt|min|max)(s|p)(s|d)$")
_CALL = re.compile(r"<(?:cudasim_)?(\w+?)f?@plt>")
_KINDS = {
    "add": "add",
    "sub": "add",
    "mul": "multiply",
    "div": "divide",
    "sqrt": "sqrt",
    "min": "compare",
    "max": "compare",
}
# Functions of the C library that one instruction, or few, compute on a GPU.
_FUNCTIONS = {
    **dict.fromkeys(("exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p"), "special"),
    **dict.fromkeys(("sin", "cos", "tan", "tanh", "sinh", "cosh", "erf", "pow"), "special"),
    **dict.fromkeys(("asin", "acos", "atan", "atan2"), "special"),
    **dict.fromkeys(("fmin", "fmax"), "compare"),
    "fma": "fma",
    "sqrt": "sqrt",
}


class _VisitsRecord(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("library", ctypes.c_char_p),
        ("visits", ctypes.POINTER(ctypes.c_uint64)),
        ("size", ctypes.c_uint64),
    )


def read_flops(core: ctypes.CDLL) -> dict[str, dict[str, int]]:
    """Operations by kernel and kind: add, multiply, fma, divide, sqrt, compare, special.

    A fused multiply-add counts as one ``fma``. ``half`` and ``bfloat16`` count like ``float``.
    """
    kernels: dict[str, collections.Counter[str]] = {}
    record = _VisitsRecord()
    for index in range(core.cudasim_visits_count()):
        core.cudasim_visits_get(index, ctypes.byref(record))
        counted = kernels.setdefault(record.kernel.decode(), collections.Counter())
        for offset, operations in _blocks(record.library.decode()).items():
            visits = record.visits[offset] if offset < record.size else 0
            for kind, times in operations.items():
                if visits:
                    counted[kind] += visits * times
    return {kernel: dict(sorted(counted.items())) for kernel, counted in kernels.items()}


@functools.cache
def _blocks(library: str) -> dict[int, dict[str, int]]:
    """Operations of each basic block, by the address to which its hook returns."""
    tool = shutil.which("objdump")
    if tool is None:
        return {}
    command = (tool, "-d", "--no-show-raw-insn", library)
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    blocks: dict[int, dict[str, int]] = {}
    operations: collections.Counter[str] = collections.Counter()
    starting = False
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            if line.endswith(">:"):  # the next function
                operations = collections.Counter()
            continue
        address, mnemonic, operands = int(match[1], 16), match[2], match[3]
        if starting:
            operations = blocks[address] = collections.Counter()
            starting = False
        if mnemonic == "call":
            if _HOOK in operands:
                starting = True
            elif (called := _CALL.search(operands)) and called[1] in _FUNCTIONS:
                operations[_FUNCTIONS[called[1]]] += 1
        elif scalar := _SCALAR.match(mnemonic):
            width = 1 if scalar[2] == "s" else 4 if scalar[3] == "s" else 2
            operations[_KINDS[scalar[1]]] += width
        elif mnemonic in ("jmp", "ret"):
            operations = collections.Counter()  # what follows belongs to another block
    return {address: dict(counted) for address, counted in blocks.items() if counted}
