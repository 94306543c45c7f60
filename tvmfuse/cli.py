"""The command line: ``tvmfuse optimize | graph | explain | doctor | bench``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from .cli_cudasim import app as cudasim
from .cli_options import (
    Device,
    DimOption,
    Fence,
    InputOption,
    Model,
    MustFuse,
    NeverFuse,
    TargetName,
    Without,
    parse_dims,
    parse_inputs,
    parse_pairs,
)
from .errors import TvmfuseError

if TYPE_CHECKING:
    from .report.data import Report

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Operator fusion for Apache TVM Relax.",
)
bench = typer.Typer(no_args_is_help=True, help="Measure, side by side with what else there is.")
app.add_typer(bench, name="bench")
app.add_typer(cudasim, name="cudasim")
# Tables need the room; where there is no terminal rich would assume 80 columns.
console = Console(width=None if sys.stdout.isatty() else 120)
errors = Console(stderr=True, soft_wrap=True)


@app.command()
def optimize(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for the results")],
    target: TargetName = "llvm",
    dim: DimOption = None,
    input_shape: InputOption = None,
    baseline: Annotated[
        bool, typer.Option(help="compare with TVM's default pipeline (slower)")
    ] = True,
    verify: Annotated[bool, typer.Option(help="check every kernel in float64")] = True,
    fuel: Annotated[
        int | None, typer.Option(help="use only the first N fusions, to bisect a bad one")
    ] = None,
    device: Annotated[
        Device, typer.Option(help="where CUDA kernels are verified: a GPU, or the emulated device")
    ] = Device.auto,
    never_fuse: NeverFuse = None,
    must_fuse: MustFuse = None,
    fence: Fence = None,
    without: Without = None,
) -> None:
    """Fuse, schedule, compile and verify MODEL; write the library and the report."""
    from .job import optimize as run
    from .options import Options
    from .report.progress import watch
    from .report.text import edge_table, group_table, summary_table, verification_table

    with watch(console) as progress:
        result = run(
            model,
            target,
            output,
            dims=parse_dims(dim),
            inputs=parse_inputs(input_shape),
            options=Options(
                verify=verify,
                fuel=fuel,
                device=device.value,
                never_fuse=parse_pairs(never_fuse),
                must_fuse=parse_pairs(must_fuse),
                fence=frozenset(fence or ()),
                without=frozenset(without or ()),
            ),
            baseline=baseline,
            progress=progress,
        )
    report = result.report
    console.print(group_table(report))
    console.print(edge_table(report))
    failed = [check for check in report.verification if check.ok is False]
    if failed:
        console.print(verification_table(report))
    console.print(summary_table(report))
    console.print(_verified(report))
    console.print(f"written: {output}/model.so, report.json, report.txt")
    if failed:
        raise typer.Exit(1)


@app.command()
def graph(model: Model, dim: DimOption = None, input_shape: InputOption = None) -> None:
    """Print the computation graph of MODEL: number, operator, inputs, outputs."""
    from .frontends import load
    from .graph import build_graph
    from .passes.dataflow import as_dataflow
    from .report.graph_table import graph_table

    mod = as_dataflow(load(model, dims=parse_dims(dim), inputs=parse_inputs(input_shape)))
    console.print(graph_table(build_graph(mod)))


@app.command()
def explain(
    model: Model,
    target: TargetName = "llvm",
    dim: DimOption = None,
    input_shape: InputOption = None,
    code: Annotated[str | None, typer.Option(help="only edges of this code")] = None,
    node: Annotated[str | None, typer.Option(help="only edges of this node")] = None,
    never_fuse: NeverFuse = None,
    must_fuse: MustFuse = None,
    fence: Fence = None,
    without: Without = None,
) -> None:
    """Say for each producer-consumer edge of MODEL whether it is fused, and if not, why."""
    from .frontends import load
    from .options import Options
    from .passes.fuse import fuse
    from .passes.prepare import prepare
    from .patterns import DEFAULT
    from .report.assemble import edge_entries
    from .report.graph_table import edges_in_full
    from .target import resolve_target

    options = Options(
        never_fuse=parse_pairs(never_fuse),
        must_fuse=parse_pairs(must_fuse),
        fence=frozenset(fence or ()),
        without=frozenset(without or ()),
    )
    mod = prepare(load(model, dims=parse_dims(dim), inputs=parse_inputs(input_shape)), options)
    edges = edge_entries(fuse(mod, resolve_target(target), DEFAULT, options).plans)
    chosen = [
        edge
        for edge in edges
        if (code is None or edge.code == code.upper())
        and (node is None or node in (edge.producer, edge.consumer))
    ]
    console.print(edges_in_full(chosen))
    console.print(f"{len(chosen)} of {len(edges)} edges")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for the results")],
) -> None:
    """Run a trained text detector through the whole job: this CPU, then H100 kernels."""
    from .demo import GPU_TARGET, registers_of, run_cpu, run_gpu
    from .report.progress import watch
    from .report.text import edge_table, summary_table

    output.mkdir(parents=True, exist_ok=True)
    console.print("A trained text detector (PP-OCRv4, ONNX) for this CPU", style="bold")
    with watch(console) as progress:
        result, check = run_cpu(output, progress)
    console.print(edge_table(result.report))
    console.print(summary_table(result.report))
    console.print(_verified(result.report))
    console.print(
        f"against ONNX Runtime on the sample picture: largest difference {check.max_abs:.1e} "
        f"(relative {check.max_rel:.1e}); both call {check.text_share:.1%} of the pixels text, "
        f"{check.disagree} pixels differ"
    )
    console.print(f"the text it found, drawn over the picture: {output}/text-map.png")
    console.print(f"The same detector for {GPU_TARGET}", style="bold")
    with watch(console) as progress:
        compiled = run_gpu(output, progress)
    console.print(summary_table(compiled.report))
    console.print(_verified(compiled.report) + " (on the emulated CUDA device, its checker on)")
    console.print(registers_of(output / "h100" / "kernels"))
    console.print(f"their source: {output}/h100/kernels/")
    failed = not result.report.ok or not compiled.report.ok or check.disagree
    raise typer.Exit(1 if failed else 0)


def _verified(report: Report) -> str:
    checked = [check for check in report.verification if check.ok]
    failed = sum(check.ok is False for check in report.verification)
    if failed:
        return f"verification FAILED for {failed} of {len(report.verification)} checks"
    worst = max((check.max_rel or 0.0 for check in checked), default=0.0)
    return (
        f"verified: {len(checked)} of {len(report.verification)} checks ran and passed, "
        f"largest relative error {worst:.1e}"
    )


@app.command()
def doctor() -> None:
    """Check this machine and say what each gap costs and how to close it."""
    from .doctor import examine
    from .report.doctor_table import doctor_table

    findings = examine()
    console.print(doctor_table(findings))
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


@bench.command("models")
def bench_models(
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for JSON and chart")],
    stock: Annotated[bool, typer.Option(help="also time TVM without tuning (slow)")] = True,
) -> None:
    """Time the trained text detector and sentence encoder against their peers."""
    from .bench.models import CASES
    from .bench.side_by_side import compare_models, comparison_table, save

    comparisons = []
    for name in CASES:
        comparisons.append(compare_models(name, with_tvm=stock))
        console.print(comparison_table(comparisons[-1]))
    save(comparisons, output)
    console.print(f"written: {output}/bench.json, bench.png, bench.svg")


@bench.command("plan")
def bench_plan() -> None:
    """Time planning and fusing on graphs of up to 10,000 operators against TVM's passes."""
    from .bench.planning import measure, planning_table

    console.print(planning_table(measure()))


def main() -> None:
    """Run the command line; a TvmfuseError is one line on stderr and exit code 2.

    ``--debug`` anywhere on the line shows the stack trace instead.
    """
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(args=arguments)
    except TvmfuseError as error:
        if debug:
            raise
        errors.print(f"tvmfuse: {error}", markup=False, highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
