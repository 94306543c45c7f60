"""Rewrite the CUDA C that TVM prints into C++ for the emulated device.

Four things change; the rest is CUDA that the headers in ``device/`` define:

* ``__shared__ half tile[64];`` becomes a reference into the block's shared memory, at an offset
  that a constant of the module gives (with a red zone after every array);
* a function that mentions ``threadIdx`` and friends begins with ``CUDASIM_COORDINATES``;
* inline PTX becomes calls (``ptx.py``);
* the file ends with the table of its kernels.

Line numbers stay those of the printed source, so that findings can name them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvmfuse.cudasim.errors import NotEmulatedError
from tvmfuse.cudasim.ptx import rewrite_asm
from tvmfuse.cudasim.text import closing, line_of

FILE_NAME = "kernel.cu"

_FUNCTION = re.compile(
    r"(?P<kind>__global__|__device__)[^;{}()]*?"
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(?P<name>\w+)\s*(?P<open>\()"
)
_COORDINATES = re.compile(r"\b(threadIdx|blockIdx|blockDim|gridDim)\b")
_ALIGNMENT = r"(?:(?:alignas|__align__)\s*\((?P<{0}>\d+)\)\s*)?"
_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+" + _ALIGNMENT.format("align") + r"(?P<type>\w[\w:\s]*?)\s+"
    r"(?P<name>\w+)\s*\[\s*\]\s*;"
)
_STATIC = re.compile(
    _ALIGNMENT.format("before")
    + r"__shared__\s+"
    + _ALIGNMENT.format("after")
    + r"(?P<type>\w[\w:\s]*?)\s+(?P<name>\w+)\s*(?P<dims>(?:\[[^\]]+\]\s*)*);"
)
# Features that would otherwise end in a puzzling error of the host compiler.
_NOT_EMULATED = {
    "__cluster_dims__": "thread block clusters",
    "cooperative_groups": "cooperative groups",
    "CUtensorMap": "TMA tensor maps",
    "__nanosleep": "__nanosleep",
}


@dataclass(frozen=True)
class SharedArray:
    """One static shared declaration: ``type name dims`` and the alignment that it asks for."""

    name: str
    type: str
    dims: str
    alignment: int


@dataclass(frozen=True)
class Function:
    """A function with a body: ``start`` is the line's beginning, ``body`` the range in braces."""

    name: str
    is_kernel: bool
    start: int
    body: tuple[int, int]


def rewrite(source: str) -> str:
    """C++ for ``device/cudasim.h`` with the meaning of the CUDA ``source``.

    Raises:
        NotEmulatedError: the source uses something that the device does not model.
    """
    for word, feature in _NOT_EMULATED.items():
        if re.search(rf"\b{word}\b", source):
            raise NotEmulatedError(f"{feature} are not emulated (the source uses {word})")
    pieces = [f'#line 1 "{FILE_NAME}"\n']
    entries = []
    position = 0
    for function in find_functions(source):
        body = source[slice(*function.body)]
        arrays: list[SharedArray] = []
        if function.is_kernel:
            body, arrays = _rewrite_shared(body, function.name)
        body = rewrite_asm(body, function.name)
        if _COORDINATES.search(body):
            body = "CUDASIM_COORDINATES " + body
        pieces.append(source[position : function.start])
        if function.is_kernel:
            pieces.append(_layout(function.name, arrays))
            pieces.append(f'#line {line_of(source, function.start)} "{FILE_NAME}"\n')
            entries.append(_table_entry(function.name, len(arrays)))
        pieces.append(source[function.start : function.body[0]])
        pieces.append(body)
        position = function.body[1]
    pieces.append(source[position:])
    pieces.append(
        '\nextern "C" __attribute__((visibility("default"))) const cudasim::Kernel '
        "cudasim_kernels[] = {\n" + "".join(entries) + "  {nullptr, nullptr, nullptr, 0, 0}};\n"
    )
    return "".join(pieces)


def kernel_names(source: str) -> tuple[str, ...]:
    """Names of the kernels that the CUDA source defines, in order."""
    return tuple(f.name for f in find_functions(source) if f.is_kernel)


def find_functions(source: str) -> list[Function]:
    """The ``__global__`` and ``__device__`` functions that have a body."""
    functions = []
    position = 0
    while match := _FUNCTION.search(source, position):
        position = match.end()
        after = closing(source, match.start("open"))
        brace = re.compile(r"\s*(?:const\s*)?\{").match(source, after)
        if brace is None:  # a declaration
            continue
        end = closing(source, brace.end() - 1)
        start = source.rfind("\n", 0, match.start()) + 1
        kind = match["kind"] == "__global__"
        functions.append(Function(match["name"], kind, start, (brace.end(), end)))
        position = end
    return functions


def _rewrite_shared(body: str, kernel: str) -> tuple[str, list[SharedArray]]:
    """Body with its shared declarations replaced, and the static ones among them."""
    arrays: list[SharedArray] = []

    def dynamic(match: re.Match[str]) -> str:
        kind = match["type"]
        return f"{kind}* const {match['name']} = ({kind}*)cudasim::dynamic_shared();"

    def static(match: re.Match[str]) -> str:
        alignment = int(match["before"] or match["after"] or 16)
        array = SharedArray(match["name"], match["type"], match["dims"].strip(), alignment)
        offset = f"cudasim_layout::{kernel}::offset_{len(arrays)}"
        arrays.append(array)
        return (
            f"{array.type} (&{array.name}){array.dims} = "
            f"*({array.type} (*){array.dims})(cudasim::static_shared() + {offset});"
        )

    body = _DYNAMIC.sub(dynamic, body)
    return _STATIC.sub(static, body), arrays


def _layout(kernel: str, arrays: list[SharedArray]) -> str:
    """Offsets of the kernel's static shared arrays, as constants."""
    lines = [
        f"namespace cudasim_layout {{ struct {kernel} {{",
        "  static constexpr size_t size_0 = 0;",
    ]
    for i, array in enumerate(arrays):
        size = f"sizeof({array.type}{array.dims})"
        offset = f"cudasim::align_up(size_{i}, {array.alignment})"
        lines.append(
            f"  static constexpr size_t offset_{i} = {offset},"
            f" size_{i + 1} = offset_{i} + {size} + cudasim::kRedZone;"
        )
    rows = "".join(
        f'{{"{array.name}", offset_{i}, sizeof({array.type}{array.dims})}}, '
        for i, array in enumerate(arrays)
    )
    lines.append(f"  static constexpr cudasim::SharedArray arrays[] = {{{rows}{{nullptr, 0, 0}}}};")
    lines.append(f"  static constexpr size_t size = size_{len(arrays)};")
    return "\n".join(lines) + "\n}; }\n"


def _table_entry(kernel: str, arrays: int) -> str:
    return (
        f'  {{"{kernel}", [](void** arguments) {{ cudasim::call({kernel}, arguments); }}, '
        f"cudasim_layout::{kernel}::arrays, {arrays}, cudasim_layout::{kernel}::size}},\n"
    )
