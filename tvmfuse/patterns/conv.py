"""Convolution of any rank, grouped, depthwise, transposed, with bias, activation, residual."""

from tvm.relax.dpl import is_op, wildcard

from ..operators import Kind
from ..pattern import Growth, Pattern

_GROWTH = Growth(
    operand=frozenset({Kind.ELEMENTWISE, Kind.VIEW, Kind.MOVEMENT}),
    epilogue=frozenset({Kind.ELEMENTWISE, Kind.VIEW, Kind.MOVEMENT}),
    moves=frozenset({"relax.permute_dims"}),
)


def _pattern(operator: str) -> Pattern:
    return Pattern(operator, is_op(f"relax.nn.{operator}")(wildcard(), wildcard()), growth=_GROWTH)


CONVOLUTIONS = tuple(
    _pattern(operator)
    for operator in (
        "conv1d",
        "conv2d",
        "conv3d",
        "conv1d_transpose",
        "conv2d_transpose",
        "conv3d_transpose",
    )
)
