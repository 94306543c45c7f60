"""The whole compiler, its order of stages written once: prepare, fuse, build, verify, report."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from .cost import Costs, measure_costs
from .graph import build_graph
from .options import Options
from .passes.build import build, dataflow_lower, finalize, finish_kernels, lower_to_memory
from .passes.cuda_image import cuda_images
from .passes.fuse import FusedModule, Memory, Splits, cut_back, fuse, graph_functions
from .passes.prepare import prepare
from .pattern import Pattern
from .patterns import DEFAULT
from .reasons import Code, Reason
from .report.assemble import edge_entries, group_entries, rejection_entries
from .report.data import Report, Verification
from .stages import Progress, Stages, silent
from .target import resolve_target, runs_here
from .verify import verify_groups, with_findings
from .versions import version_table


def compile(
    mod: tvm.IRModule,
    target: str | dict | Target = "llvm",
    *,
    patterns: Sequence[Pattern] = DEFAULT,
    database: ms.database.Database | None = None,
    options: Options | None = None,
    model: str = "",
    progress: Progress = silent,
) -> tuple[relax.VMExecutable, Report]:
    """Fuse, schedule, compile and verify ``mod`` for ``target``.

    ``mod`` is left as it was; its functions keep their names, attributes and parameters.
    ``database`` gives tuned schedules, which go before the rules.  Groups whose kernel fails its
    check are split back and the module is compiled again, so the executable returned holds only
    kernels that passed; the failures stay in ``report.verification`` and ``report.ok`` is False.

    Raises TargetError for a target that cannot be compiled for.
    """
    options = Options() if options is None else options
    target = resolve_target(target)
    stages = Stages(progress)
    with stages.stage("prepare"):
        prepared = prepare(mod, options)
    splits: Splits = {}
    memory = Memory()
    failed: list[Verification] = []
    while True:
        with stages.stage("fuse and schedule"):
            fused = fuse(prepared, target, patterns, options, database, splits, memory)
        with stages.stage("compile"):
            finished = finish_kernels(fused.scheduled, target)
            with cuda_images(target):
                executable = build(finished, target)
        if not options.verify:
            checks: list[Verification] = []
            break
        with stages.stage("verify"):
            checks = _verify(fused, executable, finished, target, options)
        wrong = [check for check in checks if check.ok is False]
        if not wrong:
            break
        failed += wrong
        for check in wrong:
            memory.distrust(fused.lowered[check.symbol], target)
        reasons = [(c.symbol, Reason(Code.VERIFICATION_FAILED, c.note)) for c in wrong]
        splits = cut_back(fused.plans, fused.groups, fused.splits, reasons, to_level=2)
    report = Report(
        model=model,
        target=str(target),
        versions=version_table(),
        after=fused_costs(fused, target),
        groups=group_entries(fused),
        edges=edge_entries(fused.plans),
        rejections=rejection_entries(fused.plans),
        verification=(*failed, *checks),
        timings=stages.seconds,
    )
    return executable, report


def fused_costs(fused: FusedModule, target: Target) -> Costs:
    """Costs of the first graph function of the fused module."""
    name = next(iter(fused.plans))
    kernels = {choice.symbol: choice.kernels for choice in fused.choices}
    operators = len(build_graph(fused.prepared, name).nodes)
    planned = lower_to_memory(fused.scheduled, target)
    return measure_costs(planned, fused.lowered, operators, kernels, name)


def _verify(
    fused: FusedModule,
    executable: relax.VMExecutable,
    finished: tvm.IRModule,
    target: Target,
    options: Options,
) -> list[Verification]:
    """Check the kernels on the device they were compiled for, or on the emulated one."""
    if target.kind.name == "cuda" and options.device == "emulated":
        from .cudasim import device

        # Built once more: with the emulated device loaded, TVM compiles kernels for it.
        with device(check=True) as session:
            checks = verify_groups(fused, build(finished, target), tvm.cuda(0))
            return with_findings(checks, session.findings)
    if not runs_here(target):
        note = "this machine cannot run the target; use --device emulated"
        symbols = {g.symbol for found in fused.groups.values() for g in found}
        return [Verification(s, None, None, None, None, note) for s in sorted(symbols)]
    device_here = tvm.cuda(0) if target.kind.name == "cuda" else tvm.cpu()
    return verify_groups(fused, executable, device_here)


def pipeline(
    target: str | dict | Target | None = None,
    *,
    patterns: Sequence[Pattern] = DEFAULT,
    database: ms.database.Database | None = None,
    options: Options | None = None,
) -> tvm.transform.Pass:
    """The same stages as a pass for ``tvm.compile(mod, target, relax_pipeline=...)``.

    Without ``target`` it compiles for the target that is current when it runs.
    """
    options = Options() if options is None else options

    @tvm.transform.module_pass(opt_level=0, name="tvmfuse.pipeline")
    def _pipeline(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        resolved = current_target(target)
        fused = fuse(prepare(mod, options), resolved, patterns, options, database)
        finished = finish_kernels(fused.scheduled, resolved)
        return finalize(dataflow_lower(finished, resolved), resolved)

    return _pipeline


class Fuse:
    """The fusion pass by itself: groups become primitive Relax functions, one kernel each.

    What follows may be any TVM pipeline: LegalizeOps, FuseOps and FuseTIR turn each primitive
    function into one PrimFunc.  With a target (or one that is current) every group is known to
    be one kernel under tvmfuse's schedule rules, which ``tvmfuse.Schedule`` applies.
    """

    def __new__(
        cls,
        target: str | dict | Target | None = None,
        *,
        patterns: Sequence[Pattern] = DEFAULT,
        options: Options | None = None,
    ) -> tvm.transform.Pass:
        """Return the pass; it is an ordinary ``tvm.transform.Pass``."""
        chosen = Options() if options is None else options

        @tvm.transform.module_pass(opt_level=0, name="tvmfuse.Fuse")
        def _fuse(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
            return fuse(prepare(mod, chosen), current_target(target), patterns, chosen).outlined

        return _fuse


class Schedule:
    """The scheduling pass by itself: tvmfuse's rules on every PrimFunc that has no schedule."""

    def __new__(cls, target: str | dict | Target | None = None) -> tvm.transform.Pass:
        """Return the pass; functions that no rule takes are left as they are."""

        @tvm.transform.module_pass(opt_level=0, name="tvmfuse.Schedule")
        def _schedule(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
            from .passes.schedule import schedule
            from .schedules import rules_for

            resolved = current_target(target)
            scheduled = schedule(mod, resolved, rules_for(resolved), frozenset()).mod
            return finish_kernels(scheduled, resolved)

        return _schedule


def current_target(target: str | dict | Target | None) -> Target:
    """``target``, else the current one, else this CPU."""
    if target is not None:
        return resolve_target(target)
    current = Target.current(allow_none=True)
    return resolve_target("llvm" if current is None else current)


__all__ = ["Fuse", "Schedule", "compile", "graph_functions", "pipeline"]
