"""Run tvmfuse and its peers on one model, interleaved in one process, and say who was faster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from ..compiler import compile
from ..options import Options
from ..threads import use_all_cores
from ..timing import Sample, interleave
from ..versions import version_table
from . import peers
from .models import Case

AGREEMENT = 1e-3  # relative to the output's rms; a peer beyond it is not timed


@dataclass(frozen=True)
class Comparison:
    """Times on one model by candidate, and the launches of ours."""

    model: str
    threads: int
    kernels: int
    samples: dict[str, Sample]
    disagree: dict[str, float]
    versions: dict[str, str]

    def ratio(self, name: str) -> float:
        """How many times faster tvmfuse is than ``name``."""
        return self.samples[name].median_us / self.samples["tvmfuse"].median_us

    def to_dict(self) -> dict:
        """JSON form."""
        return asdict(self) | {"ratios": {name: self.ratio(name) for name in self.samples}}


def compare_models(case: Case, *, rounds: int = 15, with_tvm: bool = True) -> Comparison:
    """Compile ``case``, check every peer's result against ours, then time all of them in turn."""
    cores = use_all_cores()
    mod = peers.relax_module(case)
    executable, report = compile(mod, "llvm", options=Options(verify=False))
    candidates: dict[str, peers.Run] = {"tvmfuse": peers.run_tvm(executable, case)}
    candidates |= peers.onnxruntime(case)
    candidates |= peers.pytorch(case)
    if with_tvm:
        candidates |= peers.stock_tvm(mod, case)
    mine = candidates["tvmfuse"]()
    disagree: dict[str, float] = {}
    for name, run in list(candidates.items()):
        theirs = run()
        error = float(np.abs(mine - theirs).max() / np.sqrt(np.mean(np.square(theirs))))
        if not error <= AGREEMENT:
            disagree[name] = error
            del candidates[name]
    samples = interleave(candidates, rounds=rounds, budget_s=60.0)
    return Comparison(case.name, cores, report.after.kernels, samples, disagree, version_table())


def comparison_table(comparison: Comparison) -> Table:
    """One line per candidate, fastest first."""
    table = Table(
        title=f"{comparison.model}, {comparison.threads} threads, untuned", title_justify="left"
    )
    table.add_column("")
    for column in ("median us", "quartiles us", "tvmfuse is faster by"):
        table.add_column(column, justify="right")
    for name, sample in sorted(comparison.samples.items(), key=lambda item: item[1].median_us):
        table.add_row(
            name,
            f"{sample.median_us:,.0f}",
            f"{sample.low_us:,.0f} - {sample.high_us:,.0f}",
            f"{comparison.ratio(name):.2f}x",
        )
    for name, error in comparison.disagree.items():
        table.add_row(name, "not timed", f"differs by {error:.1e}", "-")
    return table


def save(comparisons: Sequence[Comparison], folder: Path) -> None:
    """Write ``bench.json`` and a bar chart of the ratios, ``bench.png`` and ``bench.svg``."""
    folder.mkdir(parents=True, exist_ok=True)
    content = [comparison.to_dict() for comparison in comparisons]
    (folder / "bench.json").write_text(json.dumps(content, indent=1) + "\n")
    draw(comparisons, folder)


def draw(comparisons: Sequence[Comparison], folder: Path) -> None:
    """Bars of latency relative to tvmfuse, on a logarithmic axis; shorter is faster."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(comparisons),
        1,
        figsize=(9, 0.9 + 2.4 * len(comparisons)),
        constrained_layout=True,
        squeeze=False,
    )
    for axis, comparison in zip(axes[:, 0], comparisons, strict=True):
        names = sorted(comparison.samples, key=lambda n: -comparison.samples[n].median_us)
        ratios = [comparison.ratio(name) for name in names]
        colours = ["#c8553d" if name == "tvmfuse" else "#8d99ae" for name in names]
        bars = axis.barh(names, ratios, color=colours)
        axis.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=3)
        axis.set_xscale("log")
        axis.set_xlim(left=min(0.5, min(ratios) * 0.8), right=max(ratios) * 2)
        axis.set_title(f"{comparison.model}: latency relative to tvmfuse (log scale)")
        axis.spines[["top", "right"]].set_visible(False)
    for suffix in ("png", "svg"):
        figure.savefig(folder / f"bench.{suffix}", dpi=110)
    pyplot.close(figure)
