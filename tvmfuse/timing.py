"""Time several ways of doing one thing side by side, on a machine that others use too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SETTLE_S = 0.02


@dataclass(frozen=True)
class Sample:
    """Times of one candidate in microseconds: median, and the quartiles as spread."""

    median_us: float
    low_us: float
    high_us: float
    rounds: int


def interleave(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 15, budget_s: float = 10.0
) -> dict[str, Sample]:
    """Run the candidates in turn, round after round, so that noise hits all of them alike.

    Before each measurement the thread pools of the others are given time to fall asleep (they
    spin for a while after their work, which slowed ONNX Runtime by a quarter here) and the
    candidate runs once unmeasured.  A candidate that runs for less than 2 ms is called several
    times per round.  The rounds end early, but not before the fifth, once ``budget_s`` seconds
    are spent.
    """
    calls: dict[str, int] = {}
    for name, run in candidates.items():
        run()
        start = time.perf_counter()
        run()
        spent = time.perf_counter() - start
        calls[name] = max(1, int(0.002 / max(spent, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    begin = time.perf_counter()
    for done in range(rounds):
        if done >= 5 and time.perf_counter() - begin > budget_s:
            break
        for name, run in candidates.items():
            time.sleep(SETTLE_S)
            run()
            start = time.perf_counter()
            for _ in range(calls[name]):
                run()
            times[name].append((time.perf_counter() - start) / calls[name] * 1e6)
    return {name: sample_of(values) for name, values in times.items()}


def sample_of(values: list[float]) -> Sample:
    """Median and quartiles of two or more times in microseconds."""
    quartiles = statistics.quantiles(values, n=4)
    return Sample(statistics.median(values), quartiles[0], quartiles[2], len(values))
