"""Simplify index arithmetic before scheduling.

TVM writes a reshape with the general formula, for example ``(v1 // 384 + v0) % 64`` where ``v1`` is
below 384 and ``v0`` below 64.  TVM's region analysis matches only simple forms, so each block's
expressions are first simplified under the ranges of its iterators: here to ``v0``.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, sym, tirx


def simplify_indices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with every division and remainder by a constant simplified; the same values."""

    def of_block(block: s_tir.SBlock) -> s_tir.SBlock:
        if not block.iter_vars:
            return block
        analyzer = sym.Analyzer()
        for iterator in block.iter_vars:
            analyzer.bind(iterator.var, iterator.dom)

        def simplify(expression: ir.Expr) -> ir.Expr:
            return analyzer.simplify(expression)

        # Pre-order: the largest expression first, with everything below it.
        return tvm_ffi.structural_map(
            block, ((tirx.FloorMod, tirx.FloorDiv), simplify), order="pre"
        )

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlock, of_block)))
