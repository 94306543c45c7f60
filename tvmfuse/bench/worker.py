"""One candidate in a process of its own: ``python -m tvmfuse.bench.worker CASE KIND LIBRARY OUT``.

It runs the case once, saves the result to OUT and prints ``ready``.  For each number N that it
then reads it runs once unmeasured and N times measured, and prints the microseconds per call.
Between numbers it sleeps, its thread pool too, so that it does not disturb the others.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from . import models, peers


def main(case_name: str, kind: str, library: str, output: str) -> None:
    """Serve measurements of one candidate until standard input ends."""
    case = models.CASES[case_name]()
    run = peers.KINDS[kind](case, Path(library))
    np.save(output, run())
    print("ready", flush=True)
    for line in sys.stdin:
        calls = int(line)
        run()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        print((time.perf_counter() - start) / calls * 1e6, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:5])
