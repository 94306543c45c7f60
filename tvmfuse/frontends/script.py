"""A Python file that defines one IRModule, in TVMScript or in any other way."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm
from tvm import relax

from ..errors import ModelError


def load_script(path: Path) -> tvm.IRModule:
    """Run ``path`` and return its ``mod``, or the only IRModule that it defines."""
    name = f"_tvmfuse_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} cannot be read as a Python file")
    module = importlib.util.module_from_spec(spec)
    # TVMScript reads the source of its decorated class through the module's entry here.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's own code raises
        last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise ModelError(f"{path.name} raises {type(error).__name__}: {last[0]}") from error
    finally:
        del sys.modules[name]
    found = {key: value for key, value in vars(module).items() if isinstance(value, tvm.IRModule)}
    if "mod" in found:
        return found["mod"]
    if len(found) != 1:
        names = ", ".join(sorted(found)) or "none"
        raise ModelError(
            f"{path.name} defines {len(found)} IRModules ({names}); expected exactly one, or one "
            "called mod"
        )
    return next(iter(found.values()))


def bind(
    mod: tvm.IRModule, dims: Mapping[str, int], inputs: Mapping[str, Sequence[int]]
) -> tvm.IRModule:
    """Bind symbolic dimensions of ``main``: by their names, or by the shape of an input."""
    func = mod["main"]
    known = {str(v) for v in relax.analysis.free_symbolic_vars(func)} | _symbols(func)
    values = dict(dims)
    for name, shape in inputs.items():
        values |= _from_input(func, name, shape)
    unknown = sorted(set(values) - known)
    if unknown:
        raise ModelError(
            f"no symbolic dimension is called {', '.join(unknown)}; this model has "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    return relax.transform.BindSymbolicVars(values)(mod) if values else mod


def _symbols(func: relax.Function) -> set[str]:
    return {str(v) for v in relax.analysis.defined_symbolic_vars(func)}


def _from_input(func: relax.Function, name: str, shape: Sequence[int]) -> dict[str, int]:
    params = {param.name: param for param in func.params}
    if name not in params:
        raise ModelError(f"no input is called {name!r}; this model has {', '.join(params)}")
    declared = params[name].ty.shape
    if declared is None or len(declared.values) != len(shape):
        raise ModelError(f"input {name!r} has rank {params[name].ty.ndim}, not {len(shape)}")
    bound: dict[str, int] = {}
    for have, want in zip(declared.values, shape, strict=True):
        if isinstance(have, tvm.tirx.IntImm):
            if int(have) != want:
                raise ModelError(f"input {name!r} is fixed to {int(have)} where {want} was given")
        else:
            bound[str(have)] = want
    return bound
