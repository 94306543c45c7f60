"""The command line of the emulated CUDA device: ``trace | mutants | bench | gate``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_options import DimOption, InputOption, Model

if TYPE_CHECKING:
    from .cudasim.model_run import ModelRun

app = typer.Typer(no_args_is_help=True, help="The emulated CUDA device: trace, check, measure.")

TargetName = Annotated[str, typer.Option("--target", help="a CUDA architecture or TVM target tag")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Stock = Annotated[bool, typer.Option("--stock", help="TVM's default pipeline, not tvmfuse's")]


@app.command()
def trace(
    model: Model,
    target: TargetName = "sm_80",
    dim: DimOption = None,
    input_shape: InputOption = None,
    check: Annotated[bool, typer.Option(help="also report races and bad accesses")] = False,
    stock: Stock = False,
    as_json: AsJson = False,
) -> None:
    """Run MODEL on the emulated device; print its launches and what each kernel cost."""
    from .cudasim.trace import counters_table, launches_table

    session = _run(model, target, dim, input_shape, check=check, trace=True, stock=stock).session
    if as_json:
        content = {
            "launches": [asdict(launch) for launch in session.launches],
            "kernels": [asdict(counters) for counters in session.counters],
            "findings": [str(finding) for finding in session.findings],
        }
        typer.echo(json.dumps(content, indent=2))
    else:
        typer.echo(launches_table(session.launches))
        typer.echo()
        typer.echo(counters_table(session.counters))
        for finding in session.findings:
            typer.echo(str(finding))
    if session.findings:
        raise typer.Exit(1)


@app.command()
def gate(
    model: Model,
    target: TargetName = "sm_80",
    dim: DimOption = None,
    input_shape: InputOption = None,
    stock: Stock = False,
    as_json: AsJson = False,
) -> None:
    """Compile MODEL's kernels with nvcc: registers, shared memory, spills, occupancy."""
    from .cudasim.gate import check, resources_table

    run = _run(model, target, dim, input_shape, check=False, trace=False, stock=stock)
    dynamic = {launch.kernel: launch.dynamic_shared for launch in run.session.launches}
    resources = check(run.source, dynamic_shared=dynamic)
    if resources is None:
        typer.echo(
            "no nvcc: install the CUDA toolkit, or pip install nvidia-cuda-nvcc nvidia-nvvm "
            "nvidia-cuda-crt nvidia-cuda-runtime"
        )
    elif as_json:
        typer.echo(json.dumps([asdict(kernel) for kernel in resources], indent=2))
    else:
        typer.echo(resources_table(resources))


@app.command()
def mutants(
    limit: Annotated[int, typer.Option(help="of each defect the first N; 0: all")] = 0,
) -> None:
    """Break kernels on purpose and print what the checker says of each mutant."""
    from .cudasim.mutation import table
    from .cudasim.programs import judged, program_names

    typer.echo(table({name: judged(name, limit) for name in program_names()}))


@app.command()
def bench() -> None:
    """How fast the emulated device runs, checked and unchecked; says nothing about a GPU."""
    from .cudasim.bench import run, table

    typer.echo(table(run()))


def _run(
    model: str,
    target: str,
    dim: list[str] | None,
    input_shape: list[str] | None,
    *,
    check: bool,
    trace: bool,
    stock: bool,
) -> ModelRun:
    from .cli_options import parse_dims, parse_inputs
    from .cudasim.model_run import run_model
    from .frontends import load
    from .quiet import without_chatter
    from .target import resolve_target

    resolved: Any = resolve_target(target)
    with without_chatter():
        module = load(model, dims=parse_dims(dim), inputs=parse_inputs(input_shape))
    return run_model(module, resolved, check=check, trace=trace, fused=not stock)
