"""Pooling with the elementwise operators after it."""

from tvm.relax.dpl import is_op, wildcard

from ..pattern import Growth, Pattern

POOLS = tuple(
    Pattern(operator, is_op(f"relax.nn.{operator}")(wildcard()), growth=Growth())
    for operator in (
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
    )
)
