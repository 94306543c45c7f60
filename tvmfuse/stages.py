"""Name and time the stages of a job, and tell whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Progress = Callable[[str, float | None], None]
"""Called with (stage, None) when a stage starts and with (stage, seconds) when it is done."""


def silent(stage: str, seconds: float | None) -> None:
    """The progress of a caller who does not watch."""


@dataclass
class Stages:
    """Seconds by stage; a stage that runs twice (after a replan) adds up."""

    progress: Progress = silent
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the body as ``name``."""
        self.progress(name, None)
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self.progress(name, spent)
