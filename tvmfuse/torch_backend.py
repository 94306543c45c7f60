"""PyTorch: ``torch.compile(model, backend="tvmfuse")`` and ``tvmfuse.from_torch``.

Dynamo hands over one graph after another, with its weights as inputs.  The weights become
constants, so that batch norms fold; a graph that cannot be compiled runs in PyTorch, with one
warning that says why.  What a compiled graph computes never depends on a guess: sizes that export
cannot keep symbolic are compiled one by one, and weights that changed are bound anew.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import tvm
import tvm_ffi
from torch import fx
from torch.utils import _pytree as pytree
from tvm import relax
from tvm.target import Target

from .compiler import compile
from .errors import ModelError, TvmfuseError
from .frontends.torch import export_graph, import_exported_program
from .options import Options
from .report.data import Report
from .target import resolve_target, runs_here
from .threads import use_all_cores

ALIGNMENT = 64  # bytes; TVM's kernels load whole vectors from the start of a tensor
MOST_PROGRAMS = 32  # of one graph, for other weights or fixed sizes; each costs a compilation


class FallbackWarning(UserWarning):
    """A graph that runs in PyTorch because tvmfuse cannot compile it."""


class TorchModule:
    """A program compiled for one target, with its ``report``; call it as the module it was."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        target: str | dict | Target,
        options: Options,
        name: str,
    ) -> None:
        """Compile ``program``; raises ModelError and TargetError."""
        resolved = resolve_target(target)
        mod = import_exported_program(program, name, {}, {})
        self.executable, self.report = _compile(mod, resolved, options, name)
        self.weights: Sequence[torch.Tensor] = ()
        self._in, self._out = program.call_spec.in_spec, program.call_spec.out_spec
        self._target = resolved
        self._machine: Callable[..., Any] | None = None
        # A virtual machine has one stack.
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result; tensors on the target's device, no gradients."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in:
            raise ModelError(f"the module was exported for the inputs {self._in}, not {spec}")
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return pytree.tree_unflatten(self.run(tensors), self._out)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The flat results for flat inputs, without a copy where the memory is aligned."""
        with self._lock, self._stream():
            if self._machine is None:
                self._machine = self._start()
            return _tensors(self._machine(*[_argument(tensor) for tensor in tensors]))

    def _stream(self) -> AbstractContextManager[Any]:
        """The CUDA stream that PyTorch is using."""
        return tvm_ffi.use_torch_stream() if self._target.kind.name == "cuda" else nullcontext()

    def _start(self) -> Callable[..., Any]:
        if not runs_here(self._target):
            raise ModelError(f"this machine cannot run code for {self._target}")
        use_all_cores()
        device = tvm.cuda(0) if self._target.kind.name == "cuda" else tvm.cpu()
        return relax.VirtualMachine(self.executable, device)["main"]


def from_torch(
    module: torch.nn.Module,
    example_inputs: Sequence[Any],
    target: str | dict | Target = "llvm",
    *,
    options: Options | None = None,
    dynamic_shapes: Any = None,
) -> TorchModule:
    """Export ``module`` in evaluation as it is and compile it for ``target``.

    ``dynamic_shapes`` as in ``torch.export.export``.  The weights are those of now.  Raises
    ModelError for a module that cannot be exported or imported, with every operator that is
    missing, and TargetError.
    """
    name = type(module).__name__
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                module, tuple(example_inputs), dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:  # export raises whatever the module's own code runs into
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{name}: torch.export refuses it: {lines[0]}") from error
    return TorchModule(program, target, Options() if options is None else options, name)


def backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend of ``torch.compile``; ``options`` are the fields of :class:`Options`."""
    compiled = CompiledGraph(graph, Options(**(options or {})))
    if not compiled.outputs:
        return graph.forward  # only sizes: nothing to compile
    compiled.program(example_inputs)  # compiles, or warns why not
    return compiled


class CompiledGraph:
    """One graph of Dynamo and the programs compiled for it: per set of weights, per shape."""

    def __init__(self, graph: fx.GraphModule, options: Options) -> None:
        """Sort the inputs into weights and activations, the results into tensors and others."""
        self.graph, self.options = graph, options
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.weights = [i for i, node in enumerate(placeholders) if _is_weight(node)]
        self.activations = [
            i
            for i, node in enumerate(placeholders)
            if i not in self.weights and isinstance(node.meta.get("example_value"), torch.Tensor)
        ]
        results = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        values = [r.meta.get("example_value") if isinstance(r, fx.Node) else r for r in results]
        self.outputs = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
        self.others = [i for i in range(len(values)) if i not in self.outputs]
        self.reason = _reason_against(placeholders, values)
        self.sizes = _only(graph, self.others) if self.others else None
        self.dynamic = any(
            isinstance(size, torch.SymInt)
            for i in self.activations
            for size in placeholders[i].meta["example_value"].shape
        )
        # A program is good for as long as PyTorch's version counters of its weights stand still.
        self.programs: dict[tuple[Any, ...], tuple[tuple[int, ...], TorchModule]] = {}
        self.warned = False
        self.lock = threading.Lock()

    @property
    def reports(self) -> list[Report]:
        """The reports of all programs compiled so far."""
        return [program.report for _, program in self.programs.values()]

    def __call__(self, *inputs: Any) -> Any:
        """The results of the graph, from the compiled program or, after a warning, PyTorch."""
        program = self.program(inputs)
        if program is None:
            return self.graph.forward(*inputs)
        results = dict(
            zip(self.outputs, program.run([inputs[i] for i in self.activations]), strict=True)
        )
        if self.sizes is not None:
            results |= zip(self.others, self.sizes(*inputs), strict=True)
        return tuple(results[i] for i in range(len(results)))

    def program(self, inputs: Sequence[Any]) -> TorchModule | None:
        """The program for ``inputs``, compiled if need be; None: they go to PyTorch."""
        with self.lock:
            try:
                return self._lookup(inputs)
            except TvmfuseError as error:
                self.reason = str(error)
            if not self.warned:
                self.warned = True
                text = f"tvmfuse: a graph runs in PyTorch: {self.reason}"
                warnings.warn(text, FallbackWarning, stacklevel=2)
            return None

    def _lookup(self, inputs: Sequence[Any]) -> TorchModule:
        versions = tuple(
            0 if weight.is_inference() else weight._version
            for weight in (inputs[i] for i in self.weights)
        )
        known, program = self.programs.get(self._key(inputs), (None, None))
        if program is not None and known == versions:
            return program
        if self.reason is not None:
            raise ModelError(self.reason)
        if program is None and len(self.programs) >= MOST_PROGRAMS:
            raise ModelError(f"it met more than {MOST_PROGRAMS} sets of shapes or weights")
        program = self._build(inputs)
        # Held, so that no other tensor can come to lie at their addresses.
        program.weights = [inputs[i].detach() for i in self.weights]
        self.programs[self._key(inputs)] = versions, program
        return program

    def _key(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Addresses of the weights and, unless the sizes are symbolic, shapes of the others."""
        addresses = tuple(inputs[i].data_ptr() for i in self.weights)
        shapes = () if self.dynamic else tuple(tuple(inputs[i].shape) for i in self.activations)
        return addresses, shapes

    def _build(self, inputs: Sequence[Any]) -> TorchModule:
        # Dynamo is in the middle of a trace of its own, which export must not take for its.
        with torch._guards.tracing(None), torch.no_grad():
            return self._compile_best(inputs)

    def _compile_best(self, inputs: Sequence[Any]) -> TorchModule:
        target = _target([i for i in inputs if isinstance(i, torch.Tensor)])
        if self.dynamic:
            try:
                return self._compile(inputs, target, dynamic=True)
            except TvmfuseError:
                self.dynamic = False  # such sizes are compiled as they come
        return self._compile(inputs, target, dynamic=False)

    def _compile(self, inputs: Sequence[Any], target: Target, *, dynamic: bool) -> TorchModule:
        program = export_graph(self.graph, inputs, self.weights, self.outputs, dynamic=dynamic)
        return TorchModule(program, target, self.options, "the graph")


def _compile(
    mod: tvm.IRModule, target: Target, options: Options, name: str
) -> tuple[relax.VMExecutable, Report]:
    try:
        return compile(mod, target, options=options, model=name)
    except TvmfuseError:
        raise
    except Exception as error:  # any pass of TVM may refuse the graph, in its own way
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{name}: TVM cannot compile it: {lines[-1]}") from error


def _is_weight(node: fx.Node) -> bool:
    """Whether Dynamo knows the input as a parameter or buffer of a module."""
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def _reason_against(placeholders: Sequence[fx.Node], values: Sequence[Any]) -> str | None:
    """Why a graph cannot be compiled at all, from what Dynamo knows of it."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if any(tensor.requires_grad for tensor in tensors):
        return "its results need gradients; call the model within torch.no_grad() to compile it"
    given = {
        id(value.untyped_storage())
        for node in placeholders
        if isinstance(value := node.meta.get("example_value"), torch.Tensor)
    }
    if any(id(tensor.untyped_storage()) in given for tensor in tensors):
        return "a result is a view of an input, which a compiled graph cannot return"
    return None


def _only(graph: fx.GraphModule, positions: Sequence[int]) -> fx.GraphModule:
    """The part of ``graph`` that computes the results at ``positions``."""
    part = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    output = next(node for node in part.graph.nodes if node.op == "output")
    output.args = (tuple(output.args[0][i] for i in positions),)
    part.graph.eliminate_dead_code()
    part.recompile()
    return part


def _target(tensors: Sequence[torch.Tensor]) -> Target:
    """The target for the device that all tensors are on."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        names = ", ".join(sorted(str(device) for device in devices)) or "none"
        raise ModelError(f"its tensors are not on one device: {names}")
    device = devices.pop()
    if device.type == "cpu":
        return resolve_target("llvm")
    if device.type == "cuda" and not device.index:
        return Target.from_device(tvm.cuda(0))
    raise ModelError(f"tvmfuse does not compile for the device {device}")


def _argument(tensor: torch.Tensor) -> tvm.runtime.Tensor:
    """The tensor's own memory as a TVM tensor; a copy only where it has gaps or is unaligned."""
    plain = tensor.detach().contiguous()
    if plain.data_ptr() % ALIGNMENT:
        plain = plain.clone()
    return tvm.runtime.from_dlpack(plain)


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, tvm.runtime.Tensor):
        return [torch.from_dlpack(result)]
    return [tensor for item in result for tensor in _tensors(item)]
