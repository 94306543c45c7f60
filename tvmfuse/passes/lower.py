"""Lower each fused group to one PrimFunc: the one function that compiling and tuning share."""

from __future__ import annotations

import tvm
from tvm import relax


def lower(mod: tvm.IRModule) -> tvm.IRModule:
    """Turn every primitive Relax function, and every operator outside one, into a PrimFunc.

    Before::

        fused_matmul_add(x, w, b):  lv = matmul(x, w);  return add(lv, b)
        main:                       y = fused_matmul_add(x, w, b)

    After::

        @T.prim_func fused_matmul_add(x, w, b, y)
        main:                       y = call_tir(fused_matmul_add, (x, w, b))
    """
    sequence = tvm.ir.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseTIR(),
        ]
    )
    return sequence(mod)
