"""Matrix multiplication: any transpose, batched, with bias, activation, residual."""

from tvm.relax.dpl import is_op, wildcard

from ..operators import Kind
from ..pattern import Growth, Pattern

MATMUL = Pattern(
    name="matmul",
    root=is_op("relax.matmul")(wildcard(), wildcard()),
    growth=Growth(
        operand=frozenset({Kind.VIEW, Kind.MOVEMENT, Kind.ELEMENTWISE}),
        epilogue=frozenset({Kind.ELEMENTWISE, Kind.VIEW, Kind.MOVEMENT}),
        moves=frozenset({"relax.permute_dims", "relax.broadcast_to", "relax.strided_slice"}),
    ),
)
