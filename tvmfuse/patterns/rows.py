"""Row kernels: norms, softmax and reductions with the producers and consumers on the same row."""

from tvm.relax.dpl import DFPattern, is_op, wildcard

from ..operators import Kind
from ..pattern import SPATIAL_KINDS, Growth, Pattern

_GROWTH = Growth(
    operand=SPATIAL_KINDS,
    epilogue=frozenset({Kind.ELEMENTWISE, Kind.VIEW, Kind.MOVEMENT}),
    moves=frozenset(
        {"relax.permute_dims", "relax.broadcast_to", "relax.take", "relax.strided_slice"}
    ),
    expensive_operand=True,
    several_outputs=True,
    same_axes=True,
)


def _root(operator: str, inputs: int) -> DFPattern:
    return is_op(f"relax.{operator}")(*[wildcard() for _ in range(inputs)])


LAYER_NORM = Pattern("layer_norm", _root("nn.layer_norm", 3), growth=_GROWTH)
RMS_NORM = Pattern("rms_norm", _root("nn.rms_norm", 2), growth=_GROWTH)
GROUP_NORM = Pattern("group_norm", _root("nn.group_norm", 3), growth=_GROWTH)
INSTANCE_NORM = Pattern("instance_norm", _root("nn.instance_norm", 3), growth=_GROWTH)
SOFTMAX = Pattern("softmax", _root("nn.softmax", 1) | _root("nn.log_softmax", 1), growth=_GROWTH)
REDUCTIONS = tuple(
    Pattern(operator, _root(operator, 1), growth=_GROWTH)
    for operator in ("sum", "mean", "max", "min", "prod", "variance", "std")
)

ROWS = (LAYER_NORM, RMS_NORM, GROUP_NORM, INSTANCE_NORM, SOFTMAX, *REDUCTIONS)
