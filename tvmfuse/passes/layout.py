"""Convert regions around NCHW convolutions to NHWC, the layout that the schedule rules vectorise.

Before::

    c = conv2d(x, W[O, I, h, w]);  a = add(c, b[1, C, 1, 1]);  y = relu(a)

After::

    t = permute_dims(x, NCHW -> NHWC)
    c = conv2d(t, W[h, w, I, O]);  a = add(c, b[1, 1, 1, C]);  r = relu(a)
    y = permute_dims(r, NHWC -> NCHW)

One forward walk.  A value computed channels-last stays so as long as each operator that reads it
can; a permute is made only where one cannot, once per value, and is a reshape where the two orders
are the same memory.  Constants are permuted here, at compile time.  ``relax.transform.
ConvertLayout`` needed 8 s for the 426 operators of a text detector and fails on constants whose
rank is not that of the other operand.

The decision is greedy (Liu et al., "Optimizing CNN Model Inference on CPUs", USENIX ATC 2019,
section 3.2, choose layouts by a search over the whole graph): with one blocked-free layout there
is nothing to search.
"""

from __future__ import annotations

from collections import Counter

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Op

from ..operators import operator_name
from .layout_operators import converts, is_channels_last
from .layout_walk import TO_FIRST, Converter


def convert_layout(mod: tvm.IRModule) -> tvm.IRModule:
    """Convert every Relax function that has NCHW convolutions; signatures stay, so does ``mod``.

    Functions without such a convolution stay the same objects; running it twice changes nothing.
    """
    functions = {
        gv.name_hint: func
        for gv, func in mod.functions_items()
        if isinstance(func, relax.Function) and not (func.attrs and func.attrs.get("Primitive"))
    }
    chosen = {name: func for name, func in functions.items() if _has_work(func)}
    if not chosen:
        return mod
    result = mod.clone()
    for name, func in chosen.items():
        result[name] = Converter(mod).function(func)
    result = relax.transform.DeadCodeElimination()(result)
    for name, func in chosen.items():
        # The same operators on the same shapes in another order are no conversion.
        if not _converts_any(func) and _inventory(result[name]) == _inventory(func):
            result[name] = func
    return result


def _values(func: relax.Function) -> list[relax.Expr]:
    if not isinstance(func.body, relax.SeqExpr):
        return []
    return [
        binding.value
        for block in func.body.blocks
        if isinstance(block, relax.DataflowBlock)
        for binding in block.bindings
    ]


def _converts_any(func: relax.Function) -> bool:
    return any(converts(value) for value in _values(func))


def _has_work(func: relax.Function) -> bool:
    """True if there is something to convert, or an NHWC region that a permute cuts short."""
    values = _values(func)
    is_cut = any(_is_permute_to_first(value) for value in values)
    return _converts_any(func) or (is_cut and any(is_channels_last(value) for value in values))


def _inventory(func: relax.Function) -> Counter:
    return Counter((operator_name(v), tvm_ffi.structural_hash(v.ty)) for v in _values(func))


def _is_permute_to_first(value: relax.Expr) -> bool:
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, Op)
        and value.op.name == "relax.permute_dims"
        and value.attrs.axes is not None
        and [int(axis) for axis in value.attrs.axes] == list(TO_FIRST)
    )
