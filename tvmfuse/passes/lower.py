"""Lower each fused group to one PrimFunc: the one function that compiling and tuning share."""

from __future__ import annotations

import tvm
from tvm import relax, s_tir, tirx


def lower(mod: tvm.IRModule) -> tvm.IRModule:
    """Turn every primitive Relax function, and every operator outside one, into a PrimFunc.

    Before::

        fused_matmul_add(x, w, b):  lv = matmul(x, w);  return add(lv, b)
        main:                       y = fused_matmul_add(x, w, b)

    After::

        @T.prim_func fused_matmul_add(x, w, b, y)
        main:                       y = call_tir(fused_matmul_add, (x, w, b))
    """
    return merge(legalize(mod))


def legalize(mod: tvm.IRModule) -> tvm.IRModule:
    """Every operator a call of a PrimFunc, inside the groups and outside them."""
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    return tvm.ir.transform.Sequential(passes)(mod)


def merge(legalized: tvm.IRModule) -> tvm.IRModule:
    """The PrimFuncs of each group as one; all of them must have loop nests (``without_loops``)."""
    return relax.transform.FuseTIR()(legalized)


def without_loops(legalized: tvm.IRModule) -> dict[str, str]:
    """Groups that cannot be merged, with the reason: TVM gives an operator no loop nest to fuse.

    Some operators (cumsum, sort, top-k) legalise to functions without a root block, others stay
    calls of packed functions; FuseTIR would stop at either.
    """
    found: dict[str, str] = {}
    for symbol, func in legalized.functions_items():
        if not isinstance(func, relax.Function) or not (func.attrs and "Primitive" in func.attrs):
            continue
        for block in func.body.blocks:
            for binding in block.bindings:
                reason = _reason(legalized, binding.value)
                if reason is not None:
                    found[symbol.name_hint] = f"{binding.var.name} {reason}"
    return found


def _reason(mod: tvm.IRModule, value: relax.Expr) -> str | None:
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    if value.op.name != "relax.call_tir":
        is_data = value.op.name in ("relax.reshape", "relax.make_tuple")
        return None if is_data else f"({value.op.name}) has no loop nest in TVM"
    callee, name = mod[value.args[0]], value.args[0].name_hint
    if isinstance(callee, tirx.PrimFunc) and not isinstance(callee.body, s_tir.SBlockRealize):
        return f"({name}) has no loop nest that can be fused"
    if isinstance(callee, tirx.PrimFunc) and any(_has_free_layout(p.ty) for p in callee.params):
        return f"({name}) takes buffers of any offset, which no other kernel can share"
    return None


def _has_free_layout(ty: object) -> bool:
    """True for a buffer that binds variables of its own: functions written outside of TE."""
    offset = getattr(ty, "elem_offset", None)
    return isinstance(offset, tirx.Var)
