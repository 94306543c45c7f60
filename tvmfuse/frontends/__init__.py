"""Read a model from where its owner keeps it: an ONNX file, a torch.export file, a Python file.

Each frontend is a module of its own and is imported only when a model of its kind is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm

from ..errors import ModelError

Dims = Mapping[str, int]
Shapes = Mapping[str, Sequence[int]]


def load(
    model: str | Path | Any, *, dims: Dims | None = None, inputs: Shapes | None = None
) -> tvm.IRModule:
    """The Relax module of ``model``.

    ``model``: path of a ``.onnx``, ``.pt2`` or ``.py`` file, or a loaded object (IRModule, ONNX
    ModelProto, ``torch.export.ExportedProgram``).  ``dims`` binds symbolic dimensions by name,
    ``inputs`` the whole shape of an input by name.  Raises ModelError with one sentence for a file
    that is missing, truncated or cannot be imported, naming every operator that TVM lacks.
    """
    dims, inputs = dict(dims or {}), dict(inputs or {})
    if isinstance(model, tvm.IRModule):
        return _bind_script(model, dims, inputs)
    if isinstance(model, str | Path):
        return _load_file(Path(model), dims, inputs)
    kind = type(model).__module__.partition(".")[0]
    if kind == "onnx":
        from .onnx import import_onnx

        return import_onnx(model, "the ONNX model", dims, inputs)
    if kind == "torch":
        from .torch import import_exported_program

        return import_exported_program(model, "the exported program", dims, inputs)
    raise ModelError(
        f"cannot load a {type(model).__name__}; give a path, an IRModule, an ONNX ModelProto or "
        "a torch.export.ExportedProgram"
    )


def _load_file(path: Path, dims: Dims, inputs: Shapes) -> tvm.IRModule:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ModelError(f"{path} {what}; give a .onnx, .pt2 or .py file")
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        from .onnx import load_onnx

        return load_onnx(path, dims, inputs)
    if suffix == ".pt2":
        from .torch import load_exported_program

        return load_exported_program(path, dims, inputs)
    if suffix == ".py":
        from .script import load_script

        return _bind_script(load_script(path), dims, inputs)
    raise ModelError(
        f"{path.name}: unknown kind {suffix or 'without suffix'!r}; expected .onnx, .pt2 or .py"
    )


def _bind_script(mod: tvm.IRModule, dims: Dims, inputs: Shapes) -> tvm.IRModule:
    from .script import bind

    return bind(mod, dims, inputs) if dims or inputs else mod
