"""The same Relax function in float64: what a fused group is checked against."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import GenericConst

from .expand_norm import expand_norm

NARROW = frozenset({"float16", "bfloat16", "float32"})


def widen(func: relax.Function) -> relax.Function | str:
    """``func`` with every floating-point value in float64, or why that is impossible.

    Casts between floating-point types become no casts of precision: the reference keeps every
    bit, as the exact result would.  Functions that call PrimFuncs cannot be widened.

    Before::

        (x: float32) -> y = astype(x, "float16"); relu(y)

    After::

        (x: float64) -> y = astype(x, "float64"); relu(y)
    """
    builder = relax.BlockBuilder()
    replaced: dict[relax.Var, relax.Expr] = {}
    params = []
    for param in func.params:
        wide = relax.Var(param.name, widen_type(param.ty))
        replaced[param] = wide
        params.append(wide)

    def expr(value: relax.Expr) -> relax.Expr:
        if isinstance(value, relax.Var):
            return replaced.get(value, value)
        if isinstance(value, GenericConst) and isinstance(value.ty, relax.TensorType):
            if str(value.ty.dtype) in NARROW:
                return relax.const(value.value.numpy().astype("float64"), "float64")
            return value
        if isinstance(value, relax.Tuple):
            return relax.Tuple([expr(item) for item in value.fields])
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(expr(value.tuple_value), value.index)
        if isinstance(value, relax.Call):
            args = [expr(arg) for arg in value.args]
            call = relax.Call(value.op, args, _widen_attrs(value.attrs), value.ty_args)
            expanded = expand_norm(call)
            return call if expanded is None else expanded
        return value

    for block in func.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call) and not isinstance(value.op, tvm.ir.Op):
                return f"{binding.var.name} calls a function that has no float64 form"
            if isinstance(value, relax.Call) and value.op.name == "relax.call_tir":
                return f"{binding.var.name} calls a PrimFunc, which has no float64 form"
    with builder.function("wide", params):
        for block in func.body.blocks:
            for binding in block.bindings:
                replaced[binding.var] = builder.emit(expr(binding.value))
        builder.emit_func_output(expr(func.body.body))
    return builder.get()["wide"]


def widen_type(ty: relax.Type) -> relax.Type:
    """The type with narrow floating-point elements made float64."""
    if isinstance(ty, relax.TensorType) and str(ty.dtype) in NARROW:
        return relax.TensorType(ty.shape, "float64")
    return ty


def _widen_attrs(attrs: tvm.ir.Attrs | None) -> tvm.ir.Attrs | None:
    """Operator attributes with dtype-valued fields made float64."""
    if attrs is None:
        return None
    fields = {name: getattr(attrs, name) for name in ("dtype", "out_dtype") if hasattr(attrs, name)}
    changed = {name for name, value in fields.items() if str(value) in NARROW}
    if not changed:
        return attrs
    info = type(attrs).__tvm_ffi_type_info__
    values = {field.name: getattr(attrs, field.name) for field in info.fields}
    values |= {name: tvm.DataType("float64") for name in changed}
    return tvm.ir.make_node(info.type_key, **values)
