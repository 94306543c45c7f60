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

    The controls (docs/controls.md) name variables or operators.  ``never_fuse``: pairs that no
    kernel may hold both of; ``must_fuse``: pairs that one kernel must hold, else a FusionError with
    the reason; ``fence``: variables whose value is always stored for its readers; ``without``:
    names of patterns that are not used.
    """

    fuel: int | None = None
    layout: bool = True
    verify: bool = True
    device: Literal["auto", "emulated"] = "auto"
    combine_siblings: bool = True
    never_fuse: frozenset[tuple[str, str]] = frozenset()
    must_fuse: frozenset[tuple[str, str]] = frozenset()
    fence: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
