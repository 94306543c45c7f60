"""Apply local rewrites to every binding of a dataflow function, in one forward walk.

A rewrite is a function ``(value, context) -> value | None``: values in, values out, ``None`` when
it does not apply.  It sees arguments already rewritten, may look up what a variable is bound to,
and may emit intermediate bindings.  The walk keeps each binding's variable, so names and types
that users know survive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst, Op

from ..graph import used_variables

Rewrite = Callable[[relax.Expr, "RewriteContext"], relax.Expr | None]

# A rewrite that feeds itself would never end; no chain of ours is this long.
MAX_REWRITES_PER_BINDING = 32


class RewriteContext:
    """What a rewrite may ask about the function so far, and how it emits new bindings."""

    def __init__(self, builder: relax.BlockBuilder, uses: Counter) -> None:
        self._builder = builder
        self._uses = uses
        self._values: dict[relax.Var, relax.Expr] = {}
        self.bindings: list[relax.Binding] = []

    def value(self, expr: relax.Expr) -> relax.Expr:
        """What ``expr`` is bound to if it is a variable of this block, else ``expr`` itself."""
        return self._values.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def call(self, expr: relax.Expr, operator: str) -> relax.Call | None:
        """The call of ``operator`` (such as ``relax.add``) that ``expr`` is bound to, or None."""
        value = self.value(expr)
        if isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name == operator:
            return value
        return None

    def used_once(self, expr: relax.Expr) -> bool:
        """True if exactly one binding reads ``expr``, so that changing it changes nothing else."""
        return isinstance(expr, relax.Var) and self._uses[expr] == 1

    def emit(self, expr: relax.Expr, name: str = "lv") -> relax.Var:
        """Bind ``expr`` to a new variable that is used once."""
        value = self._builder.normalize(expr)
        var = relax.DataflowVar(name, value.ty)
        self._uses[var] = 1
        self.bind(var, value)
        return var

    def normalize(self, expr: relax.Expr) -> relax.Expr:
        """``expr`` with its type deduced."""
        return self._builder.normalize(expr)

    def bind(self, var: relax.Var, value: relax.Expr) -> None:
        """Append the binding ``var = value``."""
        self._values[var] = value
        self.bindings.append(relax.VarBinding(var, value))


def constant(expr: relax.Expr) -> np.ndarray | None:
    """The value of a constant as a NumPy array, or ``None``."""
    return expr.value.numpy() if isinstance(expr, GenericConst) else None


def make_constant(array: np.ndarray) -> GenericConst:
    """A Relax constant with exactly the array's dtype (``relax.const`` narrows int64 otherwise)."""
    # asarray, not ascontiguousarray: the latter turns rank 0 into rank 1.
    return relax.const(np.asarray(array, order="C"), str(array.dtype))


def substitute(value: relax.Expr, replaced: dict[relax.Var, relax.Expr]) -> relax.Expr:
    """``value`` with variables replaced; the same object when none occurs in it."""
    if isinstance(value, relax.Var):
        return replaced.get(value, value)
    if isinstance(value, relax.Call):
        args = [substitute(a, replaced) for a in value.args]
        if all(new.same_as(old) for new, old in zip(args, value.args, strict=True)):
            return value
        return relax.Call(value.op, args, value.attrs, value.ty_args, value.span)
    if isinstance(value, relax.Tuple):
        fields = [substitute(f, replaced) for f in value.fields]
        if all(new.same_as(old) for new, old in zip(fields, value.fields, strict=True)):
            return value
        return relax.Tuple(fields)
    if isinstance(value, relax.TupleGetItem):
        source = substitute(value.tuple_value, replaced)
        return (
            value if source.same_as(value.tuple_value) else relax.TupleGetItem(source, value.index)
        )
    return value


def rewrite_function(
    mod: tvm.IRModule, func: relax.Function, rewrites: Sequence[Rewrite]
) -> relax.Function:
    """``func`` with ``rewrites`` applied to each binding of its dataflow blocks until none does."""
    if not isinstance(func.body, relax.SeqExpr):
        return func
    uses: Counter = Counter()
    for block in func.body.blocks:
        for binding in block.bindings:
            uses.update(used_variables(binding.value))
    uses.update(used_variables(func.body.body))
    replaced: dict[relax.Var, relax.Expr] = {}
    blocks = []
    context = RewriteContext(relax.BlockBuilder(mod), uses)
    for block in func.body.blocks:
        if not isinstance(block, relax.DataflowBlock):
            blocks.append(block)
            continue
        context.bindings = []
        for binding in block.bindings:
            if isinstance(binding, relax.MatchCast):
                source = substitute(binding.value, replaced)
                context.bindings.append(relax.MatchCast(binding.var, source, binding.ty))
                continue
            value = substitute(binding.value, replaced)
            if not value.same_as(binding.value):
                value = context.normalize(value)
            value = _rewrite_value(value, rewrites, context)
            leaves_block = not isinstance(binding.var, relax.DataflowVar)
            is_alias = isinstance(value, relax.Var | GenericConst)
            if is_alias and not leaves_block:
                replaced[binding.var] = value
                if isinstance(value, relax.Var):
                    # The alias takes over the readers of the variable that is gone.
                    uses[value] += uses[binding.var] - 1
            else:
                context.bind(binding.var, context.normalize(value))
        blocks.append(relax.DataflowBlock(context.bindings))
    body = context.normalize(relax.SeqExpr(blocks, substitute(func.body.body, replaced)))
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def _rewrite_value(
    value: relax.Expr, rewrites: Sequence[Rewrite], context: RewriteContext
) -> relax.Expr:
    for _ in range(MAX_REWRITES_PER_BINDING):
        for rewrite in rewrites:
            result = rewrite(value, context)
            if result is not None:
                value = context.normalize(result)
                break
        else:
            return value
    return value


def rewrite_module(mod: tvm.IRModule, rewrites: Sequence[Rewrite]) -> tvm.IRModule:
    """Apply ``rewrites`` to every Relax function that is not a primitive one; ``mod`` stays."""
    result = mod.clone()
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function) and not (func.attrs and func.attrs.get("Primitive")):
            result[gv] = rewrite_function(mod, func, rewrites)
    return relax.transform.DeadCodeElimination()(result)
