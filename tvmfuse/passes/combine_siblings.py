"""Make one matmul of several that multiply the same tensor by constant weights (Q, K, V; gate, up).

Before::

    q = matmul(x, Wq) + bq;  k = matmul(x, Wk) + bk;  v = matmul(x, Wv) + bv

After::

    all = matmul(x, [Wq | Wk | Wv]) + [bq | bk | bv]
    q = all[..., :Nq];  k = all[..., Nq:Nq + Nk];  v = all[..., Nq + Nk:]

The weights are packed here, at compile time; ``relax.transform.CombineParallelMatmul`` leaves a
run-time concatenate unless they are bound, and crashes on 1-D operands.  The slices become index
arithmetic in whatever kernel reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Op

from ..graph import used_variables
from .rewriter import constant, make_constant


@dataclass(frozen=True)
class _Sibling:
    """One matmul (and the bias added to it) of a tensor by a constant weight."""

    matmul: relax.Var
    result: relax.Var  # the sum with the bias, or the matmul itself
    weight: np.ndarray  # [K, N]
    bias: np.ndarray | None  # [N]
    call: relax.Call


def combine_siblings(mod: tvm.IRModule) -> tvm.IRModule:
    """Combine in every Relax function that is not a primitive one; ``mod`` stays as it was."""
    result = mod.clone()
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function) and not (func.attrs and func.attrs.get("Primitive")):
            result[gv] = _combine(mod, func)
    return relax.transform.DeadCodeElimination()(result)


def _combine(mod: tvm.IRModule, func: relax.Function) -> relax.Function:
    if not isinstance(func.body, relax.SeqExpr):
        return func
    builder = relax.BlockBuilder(mod)
    uses: Counter = Counter(used_variables(func.body.body))
    for block in func.body.blocks:
        for binding in block.bindings:
            uses.update(used_variables(binding.value))
    blocks, changed = [], False
    for block in func.body.blocks:
        if not isinstance(block, relax.DataflowBlock):
            blocks.append(block)
            continue
        families = _families(block, uses)
        changed = changed or bool(families)
        blocks.append(_rewrite(builder, block, families) if families else block)
    if not changed:
        return func
    body = builder.normalize(relax.SeqExpr(blocks, func.body.body))
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def _families(block: relax.DataflowBlock, uses: Counter) -> list[list[_Sibling]]:
    """Siblings that can be one matmul, in program order."""
    matmuls: dict[relax.Var, relax.Call] = {}
    sums: dict[relax.Var, tuple[relax.Var, np.ndarray]] = {}
    for binding in block.bindings:
        value = binding.value
        if not isinstance(value, relax.Call) or not isinstance(value.op, Op):
            continue
        if value.op.name == "relax.matmul":
            matmuls[binding.var] = value
        elif value.op.name == "relax.add":
            for this, other in (value.args, reversed(value.args)):
                bias = constant(other)
                if this in matmuls and uses[this] == 1 and bias is not None:
                    keeps_rank = value.ty.ndim == this.ty.ndim
                    if keeps_rank and bias.ndim and bias.size == bias.shape[-1]:
                        sums[this] = (binding.var, bias.reshape(-1))
    families: dict[tuple[relax.Var, int, str], list[_Sibling]] = {}
    for var, call in matmuls.items():
        weight = constant(call.args[1])
        if weight is None or weight.ndim != 2 or not isinstance(call.args[0], relax.Var):
            continue
        if call.args[0].ty.ndim < 2 or not isinstance(var, relax.DataflowVar):
            continue
        result, bias = sums.get(var, (var, None))
        if bias is not None and (
            bias.size != weight.shape[1] or not isinstance(result, relax.DataflowVar)
        ):
            result, bias = var, None
        key = (call.args[0], weight.shape[0], str(call.ty.dtype) + str(weight.dtype))
        families.setdefault(key, []).append(_Sibling(var, result, weight, bias, call))
    return [family for family in families.values() if len(family) > 1]


def _rewrite(
    builder: relax.BlockBuilder, block: relax.DataflowBlock, families: list[list[_Sibling]]
) -> relax.DataflowBlock:
    first = {family[0].matmul: family for family in families}
    dropped = {s.matmul for family in families for s in family}
    slices: dict[relax.Var, relax.Expr] = {}
    bindings: list[relax.Binding] = []

    def bind(expr: relax.Expr, name: str) -> relax.Var:
        value = builder.normalize(expr)
        var = relax.DataflowVar(name, value.ty)
        bindings.append(relax.VarBinding(var, value))
        return var

    for binding in block.bindings:
        if binding.var in first:
            family = first[binding.var]
            combined = _combined_matmul(family, bind)
            start = 0
            for sibling in family:
                stop = start + sibling.weight.shape[1]
                slices[sibling.result] = relax.op.strided_slice(
                    combined, axes=[-1], begin=[start], end=[stop]
                )
                start = stop
        if binding.var in slices:
            value = builder.normalize(slices[binding.var])
            bindings.append(relax.VarBinding(binding.var, value))
        elif binding.var not in dropped:
            bindings.append(binding)
    return relax.DataflowBlock(bindings)


def _combined_matmul(
    family: list[_Sibling], bind: Callable[[relax.Expr, str], relax.Var]
) -> relax.Var:
    call = family[0].call
    weight = make_constant(np.concatenate([s.weight for s in family], axis=1))
    product = bind(relax.Call(call.op, [call.args[0], weight], call.attrs), "combined")
    if all(s.bias is None for s in family):
        return product
    dtype = str(call.ty.dtype)
    biases = [
        np.zeros(s.weight.shape[1], dtype) if s.bias is None else s.bias.astype(dtype)
        for s in family
    ]
    return bind(relax.op.add(product, make_constant(np.concatenate(biases))), "combined_bias")
