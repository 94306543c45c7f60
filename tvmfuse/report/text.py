"""The report as tables: on the terminal, and in report.txt."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.table import Table

from ..cost import Costs
from .data import Report

WIDTH = 110


def render_text(report: Report) -> str:
    """All tables as plain text of at most WIDTH columns."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(f"tvmfuse report for {report.model}")
    console.print(f"target: {report.target}", soft_wrap=True)
    for part in (
        summary_table(report),
        group_table(report),
        edge_table(report),
        verification_table(report),
        timing_table(report),
    ):
        console.print(part)
    output = console.file
    if not isinstance(output, io.StringIO):
        raise TypeError("the console writes to a string buffer")
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


def summary_table(report: Report) -> RenderableType:
    """Before and after: the four gains of fusion."""
    table = Table(title="before and after", title_justify="left")
    for column in ("", "TVM default", "tvmfuse", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    for label, attribute in (
        ("operators", "operators"),
        ("kernel launches", "kernels"),
        ("bytes moved to and from memory", "bytes_moved"),
        ("intermediate bytes stored", "intermediate_bytes"),
        ("peak memory for intermediates, bytes", "peak_bytes"),
    ):
        before = _figure(report.before, attribute)
        after = _figure(report.after, attribute)
        ratio = f"{before / after:.2f}x" if before and after else "-"
        table.add_row(label, _number(before), _number(after), ratio)
    if report.latency is not None:
        latency = report.latency
        table.add_row(
            f"latency, us (TVM: {latency.before_variant})",
            f"{latency.before_us:,.0f}",
            f"{latency.after_us:,.0f}",
            f"{latency.ratio:.2f}x",
        )
    return table


def _figure(costs: Costs | None, attribute: str) -> int | None:
    return None if costs is None else getattr(costs, attribute)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def group_table(report: Report) -> RenderableType:
    """One line per fused function."""
    table = Table(title="fused functions, one kernel each", title_justify="left")
    table.add_column("function", overflow="fold")
    table.add_column("pattern")
    for column in ("operators", "calls", "kernels", "bytes", "flops"):
        table.add_column(column, justify="right")
    table.add_column("schedule")
    for group in report.groups:
        table.add_row(
            group.symbol,
            group.pattern,
            str(len(group.operators)),
            str(group.count),
            str(group.kernels),
            _number(group.bytes),
            _number(group.flops),
            group.schedule["name"],
        )
    return table


def edge_table(report: Report) -> RenderableType:
    """How many edges of each code; the sentences are in report.json and ``tvmfuse explain``."""
    counts: dict[str, int] = {}
    example: dict[str, str] = {}
    for edge in report.edges:
        counts[edge.code] = counts.get(edge.code, 0) + 1
        example.setdefault(edge.code, f"{edge.producer} -> {edge.consumer}: {edge.reason}")
    table = Table(title="producer-consumer edges", title_justify="left")
    table.add_column("code")
    table.add_column("edges", justify="right")
    table.add_column("for example", overflow="fold")
    for code in sorted(counts, key=lambda c: (c != "FUSED", -counts[c], c)):
        table.add_row(code, str(counts[code]), example[code])
    return table


def verification_table(report: Report) -> RenderableType:
    """Every check, failures first."""
    table = Table(title="fused kernels against unfused operators in float64", title_justify="left")
    table.add_column("function", overflow="fold")
    for column in ("max abs", "max rel", "tolerance"):
        table.add_column(column, justify="right")
    table.add_column("result", overflow="fold")
    for check in sorted(report.verification, key=lambda c: (c.ok is not False, c.ok is not None)):
        figures = [
            "-" if value is None else f"{value:.2e}"
            for value in (check.max_abs, check.max_rel, check.tolerance)
        ]
        verdict = {True: "ok", False: "FAILED, split back", None: "not run"}[check.ok]
        note = f" ({check.note})" if check.note and check.ok is not True else ""
        table.add_row(check.symbol, *figures, verdict + note)
    return table


def timing_table(report: Report) -> RenderableType:
    """Seconds by stage."""
    table = Table(title="time of each stage", title_justify="left")
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    for stage, seconds in report.timings.items():
        table.add_row(stage, f"{seconds:.2f}")
    return table
