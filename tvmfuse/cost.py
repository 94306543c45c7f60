"""What one run of a compiled function costs: launches, traffic, intermediates, memory.

All figures are read off the module that is built (buffers planned, kernels final), for the fused
module and for TVM's own alike, so that the comparison is between what really runs.  Traffic is
counted at kernel boundaries: a kernel reads each tensor once and writes each result once.  That
flatters a schedule that spills its inner buffers to memory, on either side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.analysis import estimate_tir_flops

from .graph import used_variables
from .shapes import element_bytes, static_shape


@dataclass(frozen=True)
class Costs:
    """One run of one module.  Byte figures are ``None`` where shapes are symbolic.

    ``operators``: operator calls in the graph; ``kernels``: launches; ``bytes_moved``: read and
    written by kernels; ``intermediate_bytes``: values that one kernel stores for another;
    ``peak_bytes``: the storage that TVM's memory planner reserves for them, reuse included.
    """

    operators: int
    kernels: int
    bytes_moved: int | None
    intermediate_bytes: int | None
    peak_bytes: int | None

    def to_dict(self) -> dict[str, int | None]:
        """The ``before`` and ``after`` objects of report.json."""
        return asdict(self)


def measure_costs(
    mod: tvm.IRModule,
    unscheduled: tvm.IRModule,
    operators: int,
    kernels_of: Mapping[str, int],
    function: str = "main",
) -> Costs:
    """Costs of ``mod[function]``, a module after ``lower_to_memory``.

    ``unscheduled`` has the same PrimFuncs before they were scheduled, on which traffic is counted
    (a schedule hides that a table is only gathered from).  ``kernels_of`` gives the launches of
    each PrimFunc; one that is not in it makes one.
    """
    launches, moved, stored, peak = 0, 0, 0, 0
    exact = True
    for block in mod[function].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if not isinstance(value, relax.Call):
                continue
            if isinstance(value.op, tvm.ir.GlobalVar):
                callee = mod[value.op]
                if not isinstance(callee, tirx.PrimFunc):
                    continue
                launches += kernels_of.get(value.op.name_hint, 1)
                traffic = call_bytes(unscheduled[value.op.name_hint])
                exact = exact and traffic is not None
                moved += traffic or 0
            elif isinstance(value.op, relax.ExternFunc):
                launches += 1
                moved += sum(_tensor_bytes(v.ty) or 0 for v in used_variables(value))
            elif value.op.name == "relax.memory.alloc_storage":
                size = static_shape(tuple(value.args[0].values))
                exact = exact and size is not None
                peak += size[0] if size else 0
            elif value.op.name in ("relax.memory.alloc_tensor", "relax.builtin.alloc_tensor"):
                result = _tensor_bytes(binding.var.ty)
                exact = exact and result is not None
                if value.op.name == "relax.memory.alloc_tensor":
                    stored += result or 0
                else:
                    peak += result or 0
    if not exact:
        return Costs(operators, launches, None, None, None)
    return Costs(operators, launches, moved, stored, peak)


def call_bytes(func: tirx.PrimFunc) -> int | None:
    """Bytes that one call of ``func`` reads and writes, or ``None`` with symbolic shapes.

    A table that is only gathered from (its subscripts depend on data) counts as many elements
    as the largest result, not in full.
    """
    sizes = []
    for param in func.params:
        size = _tensor_bytes(param.ty)
        if size is None:
            return None
        sizes.append(size)
    gathered = _gathered(func)
    written = max((_elements(p.ty) or 0 for p in func.params if _is_written(func, p)), default=0)
    total = 0
    for param, size in zip(func.params, sizes, strict=True):
        if any(param.same_as(other) for other in gathered):
            size = min(size, written * element_bytes(str(param.ty.dtype)))
        total += size
    return total


def flops(func: tirx.PrimFunc) -> int | None:
    """Arithmetic operations of one call before scheduling, or ``None`` if TVM cannot count them."""
    try:
        return int(estimate_tir_flops(tvm.IRModule({"main": func})))
    except (tvm.error.InternalError, ValueError, TypeError):
        return None


def _tensor_bytes(ty: object) -> int | None:
    count = _elements(ty)
    return None if count is None else count * element_bytes(str(ty.dtype))  # type: ignore[attr-defined]


def _elements(ty: object) -> int | None:
    shape = getattr(ty, "shape", None)
    if shape is None:
        return 0 if not hasattr(ty, "ndim") else None
    values = static_shape(tuple(shape.values if hasattr(shape, "values") else shape))
    if values is None:
        return None
    count = 1
    for extent in values:
        count *= extent
    return count


def _gathered(func: tirx.PrimFunc) -> list[tirx.Var]:
    """Parameters that are read only at subscripts that depend on another tensor's elements."""
    direct: list[object] = []
    indirect: list[object] = []

    def visit(load: object) -> None:
        kind = indirect if any(_has_load(index) for index in load.indices) else direct  # type: ignore[attr-defined]
        kind.append(load.source)  # type: ignore[attr-defined]

    tvm_ffi.structural_walk(func.body, ((TensorLoad, visit),))
    return [
        param
        for param in func.params
        if any(param.same_as(b) for b in indirect) and not any(param.same_as(b) for b in direct)
    ]


def _has_load(expr: object) -> bool:
    found = False

    def visit(_: object) -> None:
        nonlocal found
        found = True

    tvm_ffi.structural_walk(expr, ((TensorLoad, visit),))
    return found


def _is_written(func: tirx.PrimFunc, param: tirx.Var) -> bool:
    written = False

    def visit(store: object) -> None:
        nonlocal written
        written = written or store.buffer.same_as(param)  # type: ignore[attr-defined]

    tvm_ffi.structural_walk(func.body, ((tirx.BufferStore, visit),))
    return written
