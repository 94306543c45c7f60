"""The table of ``tvmfuse doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from ..doctor import Finding


def doctor_table(findings: Sequence[Finding]) -> Table:
    """One line per check: what was found, what a gap costs, how to close it."""
    table = Table(title="tvmfuse doctor", title_justify="left")
    table.add_column("check")
    table.add_column("found", overflow="fold")
    table.add_column("")
    table.add_column("what it costs, and what to do", overflow="fold")
    colours = {"ok": "green", "note": "yellow", "error": "red"}
    for finding in findings:
        colour = colours[finding.level]
        table.add_row(
            finding.check,
            escape(finding.found),
            f"[{colour}]{finding.level}[/]",
            escape(finding.advice),
        )
    return table
