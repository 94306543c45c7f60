"""What a caller may ask of the planner and the pipeline; frozen, passed explicitly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """Options of :func:`tvmfuse.compile`.

    ``fuel``: use only the first ``fuel`` fusions (None: all), to bisect a bad one;
    ``layout``: convert convolutions to NHWC, which the rules of both targets vectorise best;
    ``verify``: check every group against its unfused operators in float64;
    ``device``: where CUDA kernels are verified: ``auto`` on a GPU if there is one, ``emulated`` on
    the emulated CUDA device with its checker for races and out-of-bounds accesses;
    ``combine_siblings``: make one matmul of several that read the same tensor.
    """

    fuel: int | None = None
    layout: bool = True
    verify: bool = True
    device: Literal["auto", "emulated"] = "auto"
    combine_siblings: bool = True
