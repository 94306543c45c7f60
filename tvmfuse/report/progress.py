"""Show the stages of a job: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..stages import Progress as Callback


@contextmanager
def watch(console: Console) -> Iterator[Callback]:
    """A progress callback that shows on ``console`` what runs and how long it took."""
    if not console.is_terminal:
        yield lambda stage, seconds: _line(console, stage, seconds)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, int] = {}

        def show(stage: str, seconds: float | None) -> None:
            if seconds is None and stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1)
            elif seconds is None:
                bars.reset(tasks[stage], total=1)  # type: ignore[arg-type]
            else:
                bars.update(tasks[stage], completed=1)  # type: ignore[arg-type]

        yield show


def _line(console: Console, stage: str, seconds: float | None) -> None:
    if seconds is not None:
        console.print(f"{stage}: {seconds:.2f} s", highlight=False)
