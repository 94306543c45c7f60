"""What the checker reports."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One defect that the checker saw."""

    kind: str
    kernel: str


def read_findings(core: ctypes.CDLL, first: int) -> tuple[Finding, ...]:
    """Findings from number ``first`` on."""
    return ()
