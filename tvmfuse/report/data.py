"""The report of one compilation: plain frozen values, and the dictionary that report.json holds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from ..cost import Costs


@dataclass(frozen=True)
class GroupEntry:
    """One fused function: what is in it, how often it is called, and its schedule."""

    symbol: str
    pattern: str
    operators: tuple[str, ...]
    count: int
    kernels: int
    schedule: dict[str, str]  # source ("rule", "record", "dlight", "given") and name
    bytes: int | None
    flops: int | None


@dataclass(frozen=True)
class EdgeEntry:
    """One producer-consumer edge of the graph and what became of it."""

    function: str
    producer: str
    consumer: str
    status: str  # "fused" or "cut"
    code: str
    reason: str


@dataclass(frozen=True)
class Verification:
    """One check of fused against unfused, the worst over all its inputs.

    ``max_rel`` is |fused - reference| / (|reference| + rms(reference)); ``ok`` is None where the
    check could not run, and ``note`` then says why.
    """

    symbol: str
    max_abs: float | None
    max_rel: float | None
    tolerance: float | None
    ok: bool | None
    note: str = ""


@dataclass(frozen=True)
class Latency:
    """Median times of one run, measured interleaved in one process; microseconds."""

    before_us: float
    after_us: float
    before_variant: str

    @property
    def ratio(self) -> float:
        """How many times faster the fused module is."""
        return self.before_us / self.after_us


@dataclass(frozen=True)
class RejectionEntry:
    """A match that was refused."""

    pattern: str
    anchor: str
    code: str
    reason: str


@dataclass(frozen=True)
class Report:
    """Everything that one compilation found out."""

    model: str
    target: str
    versions: dict[str, str]
    after: Costs
    groups: tuple[GroupEntry, ...]
    edges: tuple[EdgeEntry, ...]
    rejections: tuple[RejectionEntry, ...]
    before: Costs | None = None
    verification: tuple[Verification, ...] = ()
    latency: Latency | None = None
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """False if any check failed, also one whose group was then split back."""
        return all(check.ok is not False for check in self.verification)

    def pattern_counts(self) -> dict[str, int]:
        """How many groups each pattern made, most first."""
        counts: dict[str, int] = {}
        for group in self.groups:
            counts[group.pattern] = counts.get(group.pattern, 0) + group.count
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def to_dict(self) -> dict[str, Any]:
        """The content of report.json: docs/report.md explains it, report.schema.json checks it."""
        latency = None
        if self.latency is not None:
            latency = asdict(self.latency) | {"ratio": self.latency.ratio}
        return {
            "model": self.model,
            "target": self.target,
            "versions": self.versions,
            "before": None if self.before is None else self.before.to_dict(),
            "after": self.after.to_dict(),
            "patterns": self.pattern_counts(),
            "groups": [
                asdict(group) | {"operators": list(group.operators)} for group in self.groups
            ],
            "edges": [asdict(edge) for edge in self.edges],
            "rejections": [asdict(rejection) for rejection in self.rejections],
            "verification": [_finite(asdict(check)) for check in self.verification],
            "latency": latency,
            "timings": self.timings,
        }


def _finite(entry: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: an error without bound becomes null, and ``ok`` says it failed."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in entry.items()
    }
