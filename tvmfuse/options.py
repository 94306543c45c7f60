"""What a caller may ask of the planner and the pipeline; frozen, passed explicitly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Options of :func:`tvmfuse.compile`.

    ``fuel``: use only the first ``fuel`` fusions (None: all), to bisect a bad one;
    ``layout``: convert convolutions to NHWC, which the rules of both targets vectorise best;
    ``verify``: check every group against its unfused operators in float64;
    ``combine_siblings``: make one matmul of several that read the same tensor.
    """

    fuel: int | None = None
    layout: bool = True
    verify: bool = True
    combine_siblings: bool = True
