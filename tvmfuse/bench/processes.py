"""Time candidates in turn, each in a process of its own.

Thread pools spin for a while after their work and disturb whoever runs next in the same process:
ONNX Runtime took three times as long beside TVM's pool as alone on the two cores here.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..timing import Sample, sample_of

MEASURE_US = 40_000.0  # each measurement calls a candidate for about so long, at least once
SETTLE_S = 0.05


@dataclass(frozen=True)
class Candidate:
    """A way to run the case: a kind of ``peers.KINDS`` and, for TVM's, the library to load."""

    kind: str
    library: Path = Path()


@dataclass(frozen=True)
class Measured:
    """A candidate's result on the case's inputs, and its times; None if it could not run."""

    output: np.ndarray | None
    sample: Sample | None
    error: str = ""


class _Worker:
    def __init__(self, case: str, candidate: Candidate, output: Path) -> None:
        arguments = [case, candidate.kind, str(candidate.library), str(output)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tvmfuse.bench.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.calls = 1

    def wait_ready(self) -> str:
        """Empty once the worker has run the case; else the last line of its error."""
        assert self.process.stdout is not None  # a pipe was asked for
        for line in self.process.stdout:
            if line.strip() == "ready":
                return ""
        _, errors = self.process.communicate()
        return (errors.strip().splitlines() or ["it ended without a word"])[-1]

    def measure(self) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{self.calls}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def measure(
    case: str, candidates: Mapping[str, Candidate], rounds: int = 15, budget_s: float = 90.0
) -> dict[str, Measured]:
    """Run every candidate on ``case``, then time them round after round.

    The rounds end early, but not before the fifth, once ``budget_s`` seconds are spent.
    """
    with tempfile.TemporaryDirectory(prefix="tvmfuse-bench-") as folder:
        workers: dict[str, _Worker] = {}
        outputs: dict[str, np.ndarray] = {}
        errors: dict[str, str] = {}
        try:
            for number, (name, candidate) in enumerate(candidates.items()):
                path = Path(folder) / f"{number}.npy"
                workers[name] = _Worker(case, candidate, path)
                error = workers[name].wait_ready()
                if error:
                    errors[name] = error
                    workers.pop(name).close()
                else:
                    outputs[name] = np.load(path)
            times = _rounds(workers, rounds, budget_s)
        finally:
            for worker in workers.values():
                worker.close()
    return {
        name: Measured(outputs[name], sample_of(times[name]))
        if name in outputs
        else Measured(None, None, errors[name])
        for name in candidates
    }


def _rounds(workers: Mapping[str, _Worker], rounds: int, budget_s: float) -> dict[str, list[float]]:
    for worker in workers.values():
        worker.calls = max(1, round(MEASURE_US / worker.measure()))
    times: dict[str, list[float]] = {name: [] for name in workers}
    begin = time.perf_counter()
    for done in range(rounds):
        if done >= 5 and time.perf_counter() - begin > budget_s:
            break
        for name, worker in workers.items():
            time.sleep(SETTLE_S)
            times[name].append(worker.measure())
    return times
