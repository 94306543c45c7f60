"""PyTorch: files of torch.export, exported programs and the graphs that Dynamo captures."""

from __future__ import annotations

import copy
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import tvm
from torch import fx

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

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = program.run_decompositions(decompositions())
            _check_pure(program, name)
            _check_operators(program, name)
            mod = from_exported_program(program, unwrap_unit_return_tuple=True)
    except ModelError:
        raise
    except Exception as error:  # TVM's importer raises whatever its converters run into
        lines = str(error).strip().splitlines() or [type(error).__name__]
        # PyTorch explains below its first line, TVM above its last.
        line = lines[0] if isinstance(error, RuntimeError) else lines[-1]
        raise ModelError(f"{name}: TVM cannot import it: {line}") from error
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


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """PyTorch's fused inference operators, which have no decomposition there, in plain ones."""
    aten = torch.ops.aten
    return {
        aten._unsafe_view.default: torch.reshape,
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
        aten._native_multi_head_attention.default: _multi_head_attention,
    }


def _multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``torch.nn.MultiheadAttention`` of (batch, tokens, width); a mask is True where hidden."""
    if need_weights:
        raise ModelError("multi-head attention that returns its weights is not supported")
    split = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (
        torch.nn.functional.linear(x, w, b).unflatten(-1, (heads, width // heads)).transpose(1, 2)
        for x, w, b in split
    )
    scores = (q * (width // heads) ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        # Types 0: (tokens, tokens), 1: padding (batch, tokens), 2: of the scores' four axes.
        hidden = mask.to(torch.bool)  # may come as floats, -inf where hidden
        wide = hidden[:, None, None, :] if mask_type == 1 else hidden
        scores = scores.masked_fill(wide, float("-inf"))
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return torch.nn.functional.linear(mixed, weight, bias), None


def _encoder_layer(
    x: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    epsilon: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    weight_1: torch.Tensor,
    bias_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """``torch.nn.TransformerEncoderLayer`` of (batch, tokens, width), without dropout."""
    activation = torch.nn.functional.gelu if use_gelu else torch.relu
    linear, layer_norm = torch.nn.functional.linear, torch.nn.functional.layer_norm

    def norm_1(y: torch.Tensor) -> torch.Tensor:
        return layer_norm(y, (width,), norm_weight_1, norm_bias_1, epsilon)

    def norm_2(y: torch.Tensor) -> torch.Tensor:
        return layer_norm(y, (width,), norm_weight_2, norm_bias_2, epsilon)

    def attend(y: torch.Tensor) -> torch.Tensor:
        attention = (qkv_weight, qkv_bias, weight, bias, mask, False, True, mask_type)
        return _multi_head_attention(y, y, y, width, heads, *attention)[0]

    def feed(y: torch.Tensor) -> torch.Tensor:
        return linear(activation(linear(y, weight_1, bias_1)), weight_2, bias_2)

    if norm_first:
        x = x + attend(norm_1(x))
        return x + feed(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + feed(x))


def export_graph(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    weights: Sequence[int],
    outputs: Sequence[int],
    *,
    dynamic: bool,
) -> torch.export.ExportedProgram:
    """Export a graph of Dynamo as a function of its activations only.

    ``weights`` are the positions of inputs that become constants of the program, ``outputs``
    the positions of the results that it keeps (all tensors).  Symbolic sizes, which Dynamo passes
    as inputs of their own, are read off the tensors that have them.  With ``dynamic`` the sizes
    that Dynamo made symbolic stay so; otherwise they are those of ``inputs``.  Raises ModelError.
    """
    held = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    placeholders = [node for node in held.graph.nodes if node.op == "placeholder"]
    sizes = _symbolic_sizes(placeholders, weights)
    for position, node in enumerate(placeholders):
        if position in weights:
            name = f"tvmfuse_weight_{position}"
            held.register_buffer(name, inputs[position].detach())
            _replace(held.graph, node, "get_attr", name)
        elif not isinstance(inputs[position], torch.Tensor):
            home = sizes.get(str(node.meta["example_value"]))
            if home is None and node.users:
                raise ModelError(f"no input has the symbolic size {node.name}")
            if home is not None:
                _replace(held.graph, node, "call_function", torch.ops.aten.sym_size.int, home)
            else:
                held.graph.erase_node(node)
    for node in list(held.graph.nodes):
        if node.op == "call_function" and node.target is torch._C._set_grad_enabled:
            held.graph.erase_node(node)
        elif node.op == "output":
            node.args = (tuple(node.args[0][position] for position in outputs),)
    # Dead code stays for export to remove: fx would take a write into an input for dead.
    held.recompile()
    kept = [node for position, node in enumerate(placeholders) if position not in weights]
    tensors = [node for node in kept if isinstance(node.meta["example_value"], torch.Tensor)]
    arguments = tuple(i for n, i in zip(placeholders, inputs, strict=True) if n in tensors)
    shapes = tuple(_dynamic_shape(node) for node in tensors) if dynamic else None
    for node in held.graph.nodes:
        node.meta = {}  # Dynamo's names for the inputs would get into the guards of the export
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(held, arguments, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # export raises whatever the operators' rules run into
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"torch.export refuses the graph: {lines[0]}") from error


def _check_pure(program: torch.export.ExportedProgram, name: str) -> None:
    """Raise ModelError if the program writes into its inputs or weights or draws random numbers.

    TVM's importer drops such writes, and takes dropout for the identity, without a word.
    """
    signature = program.graph_signature
    written = [*signature.user_inputs_to_mutate.values(), *signature.buffers_to_mutate.values()]
    if written:
        raise ModelError(f"{name} writes into {', '.join(written)}; only functions are compiled")
    drawn = sorted({str(node.target) for node in program.graph.nodes if _is_random(node)})
    if drawn:
        raise ModelError(f"{name} draws random numbers: {', '.join(drawn)}")


def _is_random(node: fx.Node) -> bool:
    """Whether the operator draws random numbers with these arguments (dropout may be off)."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    arguments = dict(node.kwargs)
    for value, formal in zip(node.args, node.target._schema.arguments, strict=False):
        arguments[formal.name] = value
    for formal in node.target._schema.arguments:
        value = arguments.get(formal.name, formal.default_value)
        if formal.name in ("train", "training") and value is False:
            return False
        if formal.name in ("p", "dropout_p") and value == 0.0:
            return False
    return True


def _symbolic_sizes(
    placeholders: Sequence[fx.Node], weights: Sequence[int]
) -> dict[str, tuple[fx.Node, int]]:
    """For every symbol the first input tensor and axis that has it as its size."""
    found: dict[str, tuple[fx.Node, int]] = {}
    for position, node in enumerate(placeholders):
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and position not in weights:
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    found.setdefault(str(size), (node, axis))
    return found


def _dynamic_shape(node: fx.Node) -> dict[int, torch.export.Dim]:
    """The axes of an input whose sizes Dynamo made symbols, named alike where they are equal."""
    return {
        axis: torch.export.Dim(str(size))
        for axis, size in enumerate(node.meta["example_value"].shape)
        if isinstance(size, torch.SymInt) and size.node.expr.is_symbol
    }


def _replace(
    graph: fx.Graph, node: fx.Node, kind: str, target: Any, args: tuple[Any, ...] = ()
) -> None:
    """Put another node in the place of a placeholder, after the last placeholder."""
    last = [other for other in graph.nodes if other.op == "placeholder"][-1]
    with graph.inserting_after(last):
        new = graph.create_node(kind, target, args, {})
    node.replace_all_uses_with(new)
    graph.erase_node(node)
