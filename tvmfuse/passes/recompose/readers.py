"""Whether the operators of a match die with it: who reads what lies inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import tvm
from tvm import relax

from ...graph import used_variables
from ..rewriter import RewriteContext

# No decomposition of ours has more operators than this between its leaves and its root.
MAX_INTERIOR = 40


class Readers:
    """How many bindings and results of the module read each variable."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._reads: Counter = Counter()
        for _, func in mod.functions_items():
            if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
                continue
            self._reads.update(used_variables(func.body.body))
            for block in func.body.blocks:
                for binding in block.bindings:
                    self._reads.update(used_variables(binding.value))

    def die(self, root: relax.Expr, leaves: Sequence[relax.Expr], context: RewriteContext) -> bool:
        """True if replacing ``root`` by a value of ``leaves`` leaves nothing in between alive.

        A recomposition that keeps its decomposed operators alive would add work, not remove it.
        """
        stop = {leaf for leaf in leaves if isinstance(leaf, relax.Var)}
        inside: set[relax.Var] = set()
        reads: Counter = Counter()
        values = [root]
        while values:
            for var in used_variables(values.pop()):
                reads[var] += 1
                if var in stop or var in inside:
                    continue
                value = context.value(var)
                if value is var or len(inside) >= MAX_INTERIOR:
                    return False  # a parameter that is no leaf, or far more than a decomposition
                inside.add(var)
                values.append(value)
        return all(self._reads.get(var, 1) <= reads[var] for var in inside)
