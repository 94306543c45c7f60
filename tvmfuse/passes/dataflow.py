"""The form in which a module has a graph: normalised, in dataflow blocks, no renamings."""

from __future__ import annotations

import tvm
from tvm import relax


def as_dataflow(mod: tvm.IRModule) -> tvm.IRModule:
    """Normalise ``mod`` and put all that has no side effects into dataflow blocks."""
    return tvm.ir.transform.Sequential(
        [
            relax.transform.Normalize(),
            relax.transform.ConvertToDataflow(),
            relax.transform.CanonicalizeBindings(),
        ]
    )(mod)
