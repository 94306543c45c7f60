"""Run tvmfuse and its peers on one model, in turn, each in its process; say who was faster."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tvm
from rich.table import Table
from tvm import relax

from ..baseline import build_baseline
from ..compiler import compile
from ..options import Options
from ..quiet import without_chatter
from ..target import resolve_target
from ..threads import usable_cores
from ..timing import Sample
from ..versions import version_table
from . import peers
from .models import CASES
from .processes import Candidate, measure

AGREEMENT = 1e-3  # relative to the output's rms; a peer beyond it is not timed


@dataclass(frozen=True)
class Comparison:
    """Times on one model by candidate, and the launches of ours."""

    model: str
    threads: int
    kernels: int
    samples: dict[str, Sample]
    left_out: dict[str, str]
    versions: dict[str, str]

    def ratio(self, name: str) -> float:
        """How many times faster tvmfuse is than ``name``."""
        return self.samples[name].median_us / self.samples["tvmfuse"].median_us

    def to_dict(self) -> dict:
        """JSON form."""
        return asdict(self) | {"ratios": {name: self.ratio(name) for name in self.samples}}


def compare_models(name: str, *, rounds: int = 15, with_tvm: bool = True) -> Comparison:
    """Compile the case ``name``, run every peer, and time in turn all that agree with ours."""
    case = CASES[name]()
    mod = peers.relax_module(case)
    with tempfile.TemporaryDirectory(prefix="tvmfuse-bench-") as folder:
        executable, report = compile(mod, "llvm", options=Options(verify=False))
        executables = {"tvmfuse": executable}
        if with_tvm:
            executables |= _stock_tvm(mod)
        candidates: dict[str, Candidate] = {}
        for number, (label, built) in enumerate(executables.items()):
            library = Path(folder) / f"{number}.so"
            with without_chatter():
                built.export_library(str(library))
            candidates[label] = Candidate("tvm", library)
        for label, kind in peers.installed_peers(case).items():
            candidates[label] = Candidate(kind)
        measured = measure(name, candidates, rounds)
    samples: dict[str, Sample] = {}
    left_out: dict[str, str] = {}
    mine = measured["tvmfuse"].output
    for label, result in measured.items():
        if result.output is None or result.sample is None or mine is None:
            left_out[label] = result.error
            continue
        rms = float(np.sqrt(np.mean(np.square(result.output))))
        error = float(np.abs(mine - result.output).max()) / rms
        if error <= AGREEMENT:
            samples[label] = result.sample
        else:
            left_out[label] = f"its result differs by {error:.1e}"
    return Comparison(
        case.name, len(usable_cores()), report.after.kernels, samples, left_out, version_table()
    )


def _stock_tvm(mod: tvm.IRModule) -> dict[str, relax.VMExecutable]:
    """TVM without tuning, four ways: default and best passes, plain llvm and with features.

    ``best`` adds what TVM has but leaves out by default: batch norms folded or decomposed,
    common subexpressions shared.
    """
    target = resolve_target("llvm")
    found = {}
    for name, best in (("TVM default", False), ("TVM best passes", True)):
        baseline = build_baseline(mod, target, run=True, best=best)
        for variant, executable in baseline.executables.items():
            found[f"{name}, {variant}"] = executable
    return found


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
    for name, reason in comparison.left_out.items():
        table.add_row(name, "not timed", reason, "-")
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
