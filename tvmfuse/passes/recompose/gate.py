"""Find activations of the form ``polynomial(x, gate(polynomial(x)))``: GELU, SiLU, hard-swish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import relax

from ..rewriter import RewriteContext
from .match import is_call, is_float, same_type
from .polynomial import Polynomial, inside, polynomial, uncast


@dataclass(frozen=True)
class Gated:
    """A candidate: ``root`` is made of ``x`` and of the nonlinear call ``gate`` of ``x``."""

    root: relax.Expr
    x: relax.Expr
    gate_var: relax.Expr
    gate: relax.Call

    def outer(self, context: RewriteContext) -> Polynomial | None:
        """The root as a polynomial in ``(x, gate)``."""
        return polynomial(self.root, [self.x, self.gate_var], context)

    def leaves(self, context: RewriteContext) -> list[relax.Expr]:
        """Where the decomposition begins: ``x``, and ``x`` before its casts."""
        return [self.x, uncast(self.x, context)]


def find_gated(
    root: relax.Expr,
    context: RewriteContext,
    operators: tuple[str, ...],
    accept: Callable[[Gated, RewriteContext], bool],
) -> Gated | None:
    """The first reading of ``root`` as a gated activation that ``accept`` agrees to."""
    if not is_call(root, "multiply", "divide", "add") or not is_float(root):
        return None
    outer = list(inside(root, context))
    for gate_var in outer:
        gate = context.value(gate_var)
        if not is_call(gate, *operators) or not context.used_once(gate_var):
            continue
        # x is read by the gate as well, so the walk down from the root ended there.
        candidates = [expr for expr in outer[1:] if not expr.same_as(gate_var)]
        # A gate alone (hard-sigmoid) does not read x outside it.
        for x in candidates or inside(gate.args[0], context):
            found = Gated(root, x, gate_var, gate)
            if same_type(x, root) and accept(found, context):
                return found
    return None
