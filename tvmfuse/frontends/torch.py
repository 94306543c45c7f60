"""PyTorch: files of torch.export and exported programs."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import tvm

from ..errors import ModelError
from .script import bind


def load_exported_program(
    path: Path, dims: Mapping[str, int], inputs: Mapping[str, Sequence[int]]
) -> tvm.IRModule:
    """Read and import a ``.pt2`` file."""
    if not zipfile.is_zipfile(path):
        raise ModelError(f"{path} is no torch.export file, or is truncated")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(str(path))
    except (RuntimeError, KeyError, ValueError, TypeError, EOFError, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{path} cannot be read by torch.export.load: {lines[0]}") from error
    return import_exported_program(program, path.name, dims, inputs)


def import_exported_program(
    program: torch.export.ExportedProgram,
    name: str,
    dims: Mapping[str, int],
    inputs: Mapping[str, Sequence[int]],
) -> tvm.IRModule:
    """The Relax module of an exported program, its weights bound as constants."""
    from tvm.relax.frontend.torch import from_exported_program

    program = program.run_decompositions({})
    _check_operators(program, name)
    try:
        mod = from_exported_program(program, unwrap_unit_return_tuple=True)
    except Exception as error:  # TVM's importer raises whatever its converters run into
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{name}: TVM cannot import it: {lines[-1]}") from error
    return bind(mod, dims, inputs) if dims or inputs else mod


def _check_operators(program: torch.export.ExportedProgram, name: str) -> None:
    """Name every operator and node that TVM's importer lacks, all at once."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    known = ExportedProgramImporter().convert_map
    missing: dict[str, list[str]] = {}
    for node in program.graph.nodes:
        if node.op == "call_function":
            operator = getattr(node.target, "__name__", str(node.target))
            if operator not in known:
                missing.setdefault(operator, []).append(node.name)
    if missing:
        text = "; ".join(f"{operator} (node {', '.join(n)})" for operator, n in missing.items())
        raise ModelError(f"{name}: TVM's importer has no {text}")
