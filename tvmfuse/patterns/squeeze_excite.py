"""Squeeze-and-excite gates (Hu et al., CVPR 2018): a mean, two tiny layers, one small kernel.

What a gate costs is three launches, not its arithmetic: each layer sees one pixel::

    m = mean(x, [H, W]);  r = relu(conv2d(m, w1) + b1);  g = hard_sigmoid(conv2d(r, w2) + b2)

The multiplication by the gate belongs to whoever reads it, usually the next convolution.
"""

from __future__ import annotations

import math

from tvm.relax.dpl import is_op, wildcard

from ..graph import Graph, Node
from ..operators import SPATIAL, Kind
from ..pattern import ELEMENTWISE_KINDS, Growth, Pattern
from ..reasons import Code, Reason
from ..shapes import static_shape

LAYERS = 2
# Beyond this the layers are worth kernels of their own that spread over the machine.
MAX_WEIGHTS = 1 << 20


def _extend(graph: Graph, node: Node) -> tuple[int, ...] | Reason:
    """The mean, both layers and what is elementwise between them, or why it is no gate."""
    members, current, layers, weights = [node.index], node, 0, 0
    if _pixels(node) != 1:
        return Reason(Code.AXES, f"{node.name} leaves more than one pixel")
    while layers < LAYERS:
        readers = graph.consumers[current.index]
        if len(readers) != 1 or current.is_output:
            return Reason(Code.MULTI_USE, f"{current.name} has {len(readers)} readers, not one")
        current = graph.nodes[readers[0]]
        if current.kind in (Kind.CONV, Kind.MATMUL):
            layers += 1
            size = static_shape(tuple(current.value.args[1].ty.shape.values))
            weights += 1 if size is None else math.prod(size)
        elif current.kind not in SPATIAL:
            return Reason(Code.OPERATOR, f"{current.name} ({current.operator}) follows, no layer")
        if current.kind is Kind.CONV and _pixels(current) != 1:
            return Reason(Code.SHAPE, f"{current.name} has more than one pixel")
        if _pixels(current) != 1:
            return Reason(Code.SHAPE, f"{current.name} is no gate over channels")
        members.append(current.index)
    if weights > MAX_WEIGHTS:
        return Reason(Code.PATTERN_CHECK, f"its layers have {weights} weights, over {MAX_WEIGHTS}")
    return tuple(members)


def _pixels(node: Node) -> int | None:
    """Pixels of an NHWC tensor of batch one, None if it is no such tensor."""
    shape = static_shape(node.shape)
    if shape is None or len(shape) != 4 or shape[0] != 1:
        return None
    return shape[1] * shape[2]


SQUEEZE_EXCITE = Pattern(
    name="squeeze_excite",
    root=is_op("relax.mean")(wildcard()),
    extend=_extend,
    growth=Growth(operand=frozenset(), epilogue=ELEMENTWISE_KINDS),
)
