"""What each Relax operator is to fusion: the one table that the planner decides from.

Kinds follow TVM's ``op_pattern`` (``relax.transform.AnnotateTIROpPattern``) and refine its kind 4,
in which TVM lumps together everything that it will not fuse into.
"""

from __future__ import annotations

from enum import Enum

from tvm import relax, tirx
from tvm.ir import Op


class Kind(Enum):
    """The role of one operator in a fused group."""

    ELEMENTWISE = "elementwise"  # one input element to one output element, or broadcast
    VIEW = "view"  # same elements in the same order under another shape
    MOVEMENT = "movement"  # elements moved or selected, nothing computed
    REDUCTION = "reduction"  # reduces axes of one tensor
    ROW = "row"  # normalises along axes: softmax and the norms
    MATMUL = "matmul"
    CONV = "conv"
    POOL = "pool"
    TUPLE = "tuple"  # makes or takes apart a tuple, no computation
    OPAQUE = "opaque"  # no rule fuses it


_NAMES: dict[Kind, str] = {
    Kind.ELEMENTWISE: """
        abs acos acosh add asin asinh astype atan atan2 atanh bitwise_and bitwise_not bitwise_or
        bitwise_xor ceil clip cos cosh divide equal erf ewise_fma exp floor floor_divide floor_mod
        greater greater_equal isfinite isinf isnan left_shift less less_equal log log_add_exp
        logical_and logical_not logical_or logical_xor maximum minimum mod multiply negative
        nn.gelu nn.gelu_tanh nn.leakyrelu nn.prelu nn.relu nn.selu nn.silu nn.softplus not_equal
        power right_shift round rsqrt sigmoid sign sin sinh sqrt square subtract tan tanh trunc
        where full_like ones_like zeros_like full ones zeros arange quantize dequantize tril triu
        """,
    Kind.VIEW: "reshape squeeze expand_dims flatten nn.batch_flatten",
    Kind.MOVEMENT: """
        permute_dims broadcast_to take strided_slice concat split stack repeat tile flip
        layout_transform image.resize2d nn.pad nn.pixel_shuffle gather_elements gather_nd
        index_tensor one_hot
        """,
    Kind.REDUCTION: "sum mean max min prod variance std",
    Kind.ROW: "nn.softmax nn.log_softmax nn.layer_norm nn.rms_norm nn.group_norm nn.instance_norm",
    Kind.MATMUL: "matmul",
    Kind.CONV: """
        nn.conv1d nn.conv2d nn.conv3d nn.conv1d_transpose nn.conv2d_transpose nn.conv3d_transpose
        """,
    Kind.POOL: """
        nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d
        nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d
        """,
}

KIND_OF_OPERATOR: dict[str, Kind] = {
    f"relax.{name}": kind for kind, names in _NAMES.items() for name in names.split()
}

# Elementwise operators whose work is worth more than the memory access that recomputing them saves.
EXPENSIVE: frozenset[str] = frozenset(
    f"relax.{name}"
    for name in """
        acos acosh asin asinh atan atan2 atanh cos cosh erf exp log log_add_exp nn.gelu nn.gelu_tanh
        nn.selu nn.silu nn.softplus power sigmoid sin sinh tan tanh
        """.split()
)

SPATIAL: frozenset[Kind] = frozenset({Kind.ELEMENTWISE, Kind.VIEW, Kind.MOVEMENT})

# TVM's op_pattern numbers: elementwise 0, broadcast 1, injective 2.
_TIR_KIND: dict[int, Kind] = {0: Kind.ELEMENTWISE, 1: Kind.ELEMENTWISE, 2: Kind.MOVEMENT}


def operator_name(value: relax.Expr) -> str:
    """The operator of a binding as users know it: ``relax.add``, ``call_tir``, ``tuple``."""
    if isinstance(value, relax.Call):
        if isinstance(value.op, Op):
            return value.op.name
        return value.op.name_hint if hasattr(value.op, "name_hint") else "call"
    if isinstance(value, relax.Tuple | relax.TupleGetItem):
        return "tuple"
    return type(value).__name__.lower()


def kind_of(value: relax.Expr, functions: dict[str, tirx.PrimFunc]) -> Kind:
    """The kind of one binding; ``functions`` are the module's PrimFuncs by name, annotated."""
    if isinstance(value, relax.Tuple | relax.TupleGetItem):
        return Kind.TUPLE
    if not isinstance(value, relax.Call) or not isinstance(value.op, Op):
        return Kind.OPAQUE
    if value.op.name == "relax.call_tir":
        func = functions.get(value.args[0].name_hint)
        pattern = func.attrs.get("op_pattern") if func is not None and func.attrs else None
        # A function that someone scheduled already is theirs: it is called, not fused.
        if func is None or (func.attrs and func.attrs.get("tirx.is_scheduled")):
            return Kind.OPAQUE
        return Kind.OPAQUE if pattern is None else _TIR_KIND.get(int(pattern), Kind.OPAQUE)
    return KIND_OF_OPERATOR.get(value.op.name, Kind.OPAQUE)
