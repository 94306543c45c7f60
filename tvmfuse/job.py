"""The main job: a model file in, a library and a report out, measured against TVM's default."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from .baseline import Baseline, build_baseline
from .compiler import compile
from .errors import OutputError
from .frontends import load
from .options import Options
from .passes.fuse import graph_functions
from .pattern import Pattern
from .patterns import DEFAULT
from .quiet import without_chatter
from .report.data import Latency, Report, Verification
from .report.text import render_text
from .sample_inputs import sample
from .stages import Progress, Stages, silent
from .target import resolve_target, runs_here
from .threads import use_all_cores
from .timing import interleave
from .verify import compare

MODEL_TOLERANCE = 1e-4  # relative, between two float32 runs of a whole network


@dataclass(frozen=True)
class Optimized:
    """What :func:`optimize` made; ``folder`` is None if nothing was written."""

    executable: relax.VMExecutable
    report: Report
    folder: Path | None


def optimize(
    model: str | Path | object,
    target: str | dict | Target = "llvm",
    output: str | Path | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    patterns: Sequence[Pattern] = DEFAULT,
    database: ms.database.Database | None = None,
    options: Options | None = None,
    baseline: bool = True,
    progress: Progress = silent,
) -> Optimized:
    """Load, compile, verify and measure ``model``, and write the results into ``output``.

    Writes ``model.so``, ``report.json``, ``report.txt`` and, for CUDA, ``kernels/*.cu``; either
    all of them or none.  ``baseline=False`` leaves out the comparison with TVM's default
    pipeline, which is the slowest part of the job.  Raises the errors of :func:`load` and
    :func:`compile`, and OutputError for a folder that cannot be written.
    """
    folder = None if output is None else _writable(Path(output))
    resolved = resolve_target(target)
    # Asked before an emulated device can be loaded, which TVM cannot tell from a real one.
    here = runs_here(resolved)
    stages = Stages(progress)
    with stages.stage("load"):
        mod = load(model, dims=dims, inputs=inputs)
    name = str(model) if isinstance(model, str | Path) else type(model).__name__
    executable, report = compile(
        mod,
        resolved,
        patterns=patterns,
        database=database,
        options=options,
        model=name,
        progress=progress,
    )
    if baseline:
        with stages.stage("compile with TVM's default pipeline"):
            before = build_baseline(mod, resolved, run=here)
        with stages.stage("compare"):
            report = _compare(mod, report, executable, before, resolved)
    report = replace(report, timings={**stages.seconds, **report.timings})
    if folder is not None:
        with stages.stage("write"):
            write(executable, report, folder)
    return Optimized(executable, report, folder)


def _compare(
    mod: tvm.IRModule,
    report: Report,
    executable: relax.VMExecutable,
    before: Baseline,
    target: Target,
) -> Report:
    """Add TVM's costs, the check of the whole model and the latencies to ``report``."""
    report = replace(report, before=before.costs)
    name = graph_functions(mod)[0]
    arguments = sample(mod[name], {}, "random", seed=0)
    if not before.executables or arguments is None:
        return report
    device = tvm.cuda(0) if target.kind.name == "cuda" else tvm.cpu()
    tensors = [tvm.runtime.tensor(argument, device) for argument in arguments]
    use_all_cores()
    ours = relax.VirtualMachine(executable, device)[name]
    theirs = {
        variant: relax.VirtualMachine(ex, device)[name]
        for variant, ex in before.executables.items()
    }
    check = check_model(_outputs(ours(*tensors)), _outputs(next(iter(theirs.values()))(*tensors)))
    times = interleave(
        {"after": lambda: ours(*tensors)}
        | {variant: (lambda run=run: run(*tensors)) for variant, run in theirs.items()}
    )
    best = min(theirs, key=lambda variant: times[variant].median_us)
    latency = Latency(times[best].median_us, times["after"].median_us, best)
    return replace(report, verification=(*report.verification, check), latency=latency)


def check_model(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> Verification:
    """Compare all outputs of the fused model with those of the unfused one."""
    worst_abs, worst_rel, wrong = 0.0, 0.0, 0
    for mine, theirs in zip(got, want, strict=True):
        exact = theirs.astype("float64") if theirs.dtype.kind == "f" else theirs
        errors = compare(mine, exact, exact)
        worst_abs, worst_rel = max(worst_abs, errors.absolute), max(worst_rel, errors.relative)
        wrong += errors.wrong
    ok = worst_rel <= MODEL_TOLERANCE and not wrong
    note = "whole model against TVM's unfused operators"
    return Verification("main", worst_abs, worst_rel, MODEL_TOLERANCE, ok, note)


def _outputs(result: object) -> list[np.ndarray]:
    if hasattr(result, "numpy"):
        return [result.numpy()]
    return [array for item in result for array in _outputs(item)]  # type: ignore[attr-defined]


def _writable(folder: Path) -> Path:
    """Fail before the work, not after it, if the results cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; give a folder for the results")
    parent = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{parent} cannot be written; choose another output folder")
    return folder


def write(executable: relax.VMExecutable, report: Report, folder: Path) -> None:
    """Write all results beside ``folder`` first and move them in when they are complete."""
    created = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".tvmfuse-", dir=folder))
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror}") from error
    try:
        with without_chatter():
            executable.export_library(str(staging / "model.so"))
        (staging / "report.json").write_text(json.dumps(report.to_dict(), indent=1) + "\n")
        (staging / "report.txt").write_text(render_text(report))
        sources = kernel_sources(executable)
        if sources:
            (staging / "kernels").mkdir()
        for symbol, source in sources.items():
            (staging / "kernels" / f"{symbol}.cu").write_text(source)
        if (folder / "kernels").is_dir():
            shutil.rmtree(folder / "kernels")
        for item in sorted(staging.iterdir()):
            os.replace(item, folder / item.name)
    except OSError as error:
        if created:
            shutil.rmtree(folder, ignore_errors=True)
        raise OutputError(f"{folder} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def kernel_sources(executable: relax.VMExecutable) -> dict[str, str]:
    """CUDA source by kernel, each with the declarations that it needs to compile by itself."""
    sources: dict[str, str] = {}
    for module in _modules(executable.mod):
        if module.kind != "cuda":
            continue
        head, *kernels = module.inspect_source().split('extern "C" __global__')
        for text in kernels:
            signature = text.partition("{")[0]
            if ";" in signature or "{" not in text:
                head += 'extern "C" __global__' + text  # a declaration only
                continue
            symbol = signature.rpartition(")")[0].split("(")[-2].split()[-1]
            sources[symbol] = head + 'extern "C" __global__' + text
    return sources


def _modules(module: tvm.runtime.Module) -> list[tvm.runtime.Module]:
    return [module, *(inner for item in module.imports for inner in _modules(item))]
