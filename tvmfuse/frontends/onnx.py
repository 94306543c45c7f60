"""ONNX files: read, cleaned up by onnxslim, imported by TVM."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import tvm

from ..errors import ModelError

OLDEST_OPSET = 7  # before it, broadcasting is spelled by attributes that TVM's importer ignores


def load_onnx(
    path: Path, dims: Mapping[str, int], inputs: Mapping[str, Sequence[int]]
) -> tvm.IRModule:
    """Read and import an ONNX file; see :func:`import_onnx`."""
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path))
    except DecodeError as error:
        raise ModelError(f"{path} is no ONNX file, or is truncated ({error})") from error
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    if not model.graph.node:
        raise ModelError(f"{path} holds no ONNX graph; it is empty or truncated")
    return import_onnx(model, path.name, dims, inputs)


def import_onnx(
    model: onnx.ModelProto,
    name: str,
    dims: Mapping[str, int],
    inputs: Mapping[str, Sequence[int]],
) -> tvm.IRModule:
    """The Relax module of an ONNX model whose symbolic dimensions ``dims``/``inputs`` bind.

    onnxslim folds the shape subgraphs that exporters leave (TVM's importer needs constant
    shapes for Reshape, Resize and the like) before TVM reads the graph.
    """
    _check_opset(model, name)
    shapes, unbound = _input_shapes(model, name, dims, inputs)
    model = _slim(model, shapes if not unbound else {})
    _check_operators(model, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _import(model, shapes)
    except Exception as error:  # TVM's importer raises whatever its converters run into
        lines = str(error).strip().splitlines() or [type(error).__name__]
        if unbound:
            hint = " ".join(f"--dim {dim}=N" for dim in dict.fromkeys(unbound.values()))
            raise ModelError(
                f"{name}: shapes depend on unbound dimensions of input "
                f"{', '.join(sorted({key for key, _ in unbound}))}; bind them with {hint} "
                f"(TVM says: {lines[-1]})"
            ) from error
        raise ModelError(f"{name}: TVM cannot import it: {lines[-1]}") from error


def _import(model: onnx.ModelProto, shapes: Mapping[str, list]) -> tvm.IRModule:
    from tvm.relax.frontend.onnx import from_onnx

    # One variable per name, so that inputs that share a dimension share it in Relax too.
    symbols = {
        d: tvm.tirx.Var(d, "int64") for s in shapes.values() for d in s if isinstance(d, str)
    }
    given = {name: [symbols.get(d, d) for d in shape] for name, shape in shapes.items()}
    return from_onnx(model, shape_dict=given, keep_params_in_input=False)


def _check_opset(model: onnx.ModelProto, name: str) -> None:
    newest = onnx.defs.onnx_opset_version()
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and not OLDEST_OPSET <= entry.version <= newest:
            raise ModelError(
                f"{name} uses ONNX opset {entry.version}; opsets {OLDEST_OPSET} to {newest} can be "
                "read (convert it with onnx.version_converter)"
            )


def _input_shapes(
    model: onnx.ModelProto,
    name: str,
    dims: Mapping[str, int],
    inputs: Mapping[str, Sequence[int]],
) -> tuple[dict[str, list], dict[tuple[str, int], str]]:
    """Each input's shape, and the dimensions that stay symbolic, by input and position."""
    weights = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in weights]
    names = [value.name for value in values]
    for given in inputs:
        if given not in names:
            raise ModelError(f"{name} has no input {given!r}; its inputs are {', '.join(names)}")
    shapes: dict[str, list] = {}
    unbound: dict[tuple[str, int], str] = {}
    seen: set[str] = set()
    for value in values:
        declared = value.type.tensor_type.shape.dim
        if value.name in inputs:
            shape = list(inputs[value.name])
            if len(declared) and len(shape) != len(declared):
                raise ModelError(
                    f"{name}: input {value.name!r} has rank {len(declared)}, not {len(shape)}"
                )
            shapes[value.name] = shape
            seen.update(dim.dim_param for dim in declared)
            continue
        extents: list = []
        for position, dim in enumerate(declared):
            symbol = dim.dim_param or f"{value.name}_{position}"
            seen.add(symbol)
            if dim.dim_value > 0:
                extents.append(int(dim.dim_value))
            elif symbol in dims:
                extents.append(dims[symbol])
            else:
                unbound[value.name, position] = symbol
                extents.append(symbol)
        shapes[value.name] = extents
    wrong = sorted(set(dims) - seen)
    if wrong:
        symbols = sorted(symbol for symbol in seen if symbol)
        raise ModelError(
            f"{name} has no symbolic dimension {', '.join(wrong)}; it has "
            f"{', '.join(symbols) or 'none'}"
        )
    return shapes, unbound


def _slim(model: onnx.ModelProto, shapes: Mapping[str, list]) -> onnx.ModelProto:
    """Fold shape subgraphs and constants; the model as it is if onnxslim cannot take it."""
    import onnxslim

    given = [f"{name}:{','.join(str(d) for d in shape)}" for name, shape in shapes.items() if shape]
    try:
        slimmed = onnxslim.slim(model, input_shapes=given or None)
    except Exception as error:  # noqa: BLE001  a failed clean-up must not stop a readable model
        warnings.warn(f"onnxslim left the model as it was: {error}", stacklevel=2)
        return model
    return model if slimmed is None else slimmed


def _check_operators(model: onnx.ModelProto, name: str) -> None:
    """Name every operator and node that TVM's importer lacks, all at once."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    known = {*_get_convert_map(), "If", "Constant"}
    missing: dict[str, list[str]] = {}
    for node in model.graph.node:
        if node.op_type not in known:
            label = node.name or (node.output[0] if node.output else "unnamed")
            missing.setdefault(node.op_type, []).append(label)
    if missing:
        text = "; ".join(f"{operator} (node {', '.join(n)})" for operator, n in missing.items())
        raise ModelError(f"{name}: TVM's importer has no {text}")
