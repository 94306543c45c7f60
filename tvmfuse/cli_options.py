"""The options that several commands share, and what their texts mean."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from .errors import FusionError, ModelError

Model = Annotated[str, typer.Argument(help="a .onnx, .pt2 or .py file")]
TargetName = Annotated[
    str, typer.Option("--target", help="llvm (this CPU), cuda, sm_90a or a TVM target tag")
]
DimOption = Annotated[
    list[str] | None, typer.Option("--dim", metavar="NAME=N", help="bind a symbolic dimension")
]
InputOption = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME:1x3x160x160", help="bind the shape of a whole input"),
]
NeverFuse = Annotated[
    list[str] | None, typer.Option("--never-fuse", metavar="A:B", help="keep A and B apart")
]
MustFuse = Annotated[
    list[str] | None,
    typer.Option("--must-fuse", metavar="A:B", help="stop with the reason if A and B are apart"),
]
Fence = Annotated[
    list[str] | None, typer.Option("--fence", metavar="NAME", help="fuse nothing into NAME")
]
Without = Annotated[
    list[str] | None, typer.Option("--without", metavar="PATTERN", help="leave a pattern out")
]


class Device(str, Enum):
    """Choices of ``--device``."""

    auto = "auto"
    emulated = "emulated"


def parse_pairs(values: list[str] | None) -> frozenset[tuple[str, str]]:
    """``A:B`` options as pairs; raises FusionError for anything else."""
    pairs = set()
    for value in values or []:
        first, colon, second = value.partition(":")
        if not colon or not first or not second or ":" in second:
            raise FusionError(f"{value!r} is no pair of names; write A:B")
        pairs.add((first, second))
    return frozenset(pairs)


def parse_dims(values: list[str] | None) -> dict[str, int]:
    """``NAME=N`` options as a dictionary; raises ModelError for anything else."""
    dims: dict[str, int] = {}
    for value in values or []:
        name, equals, number = value.rpartition("=")
        if not equals or not name or not number.isdigit() or int(number) < 1:
            raise ModelError(f"--dim {value!r} is not NAME=N with N a positive whole number")
        dims[name] = int(number)
    return dims


def parse_inputs(values: list[str] | None) -> dict[str, tuple[int, ...]]:
    """``NAME:1x3x160x160`` options as a dictionary; raises ModelError for anything else."""
    shapes: dict[str, tuple[int, ...]] = {}
    for value in values or []:
        name, colon, text = value.rpartition(":")
        extents = text.split("x")
        if not colon or not name or not all(e.isdigit() and int(e) > 0 for e in extents):
            raise ModelError(f"--input {value!r} is not NAME:1x3x160x160 with positive extents")
        shapes[name] = tuple(int(extent) for extent in extents)
    return shapes
