"""Random schedules out of MetaSchedule's CUDA spaces, run on the emulated device against NumPy.

``python tests/metaschedule_samples.py [COUNT]`` prints a line for each kind of sample.
"""

from __future__ import annotations

import collections
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, s_tir
from tvm.relax import op
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

import tvmfuse.cudasim as cudasim

TARGET = Target("nvidia/nvidia-a100")
ATTEMPTS = 12  # draws for one sample: most random tensor-core schedules do not fit on a GPU


@dataclass(frozen=True)
class Case:
    """An operator with float inputs, and the space that its samples come from."""

    name: str
    space: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]

    def expression(self, *inputs: relax.Var) -> relax.Expr:
        """The operator on the inputs; tensor cores take sums in float32."""
        if self.name == "matmul":
            return op.matmul(*inputs, out_dtype="float32")
        if self.name == "conv2d":
            return op.nn.conv2d(
                *inputs,
                padding=1,
                data_layout="NHWC",
                kernel_layout="HWIO",
                out_dtype="float32",
            )
        if self.name == "softmax":
            return op.nn.softmax(*inputs)
        return op.nn.layer_norm(*inputs, axes=[-1])


CASES = (
    Case("matmul", "cuda", "float32", ((64, 64), (64, 64))),
    Case("conv2d", "cuda", "float32", ((1, 8, 8, 16), (3, 3, 16, 16))),
    Case("softmax", "cuda", "float32", ((32, 96),)),
    Case("norm", "cuda", "float32", ((32, 96), (96,), (96,))),
    Case("matmul", "cuda-tensorcore", "float16", ((128, 128), (128, 128))),
    Case("conv2d", "cuda-tensorcore", "float16", ((1, 16, 16, 32), (3, 3, 32, 32))),
    Case("softmax", "cuda-tensorcore", "float16", ((32, 96),)),
    Case("norm", "cuda-tensorcore", "float16", ((32, 96), (96,), (96,))),
)


@dataclass(frozen=True)
class Outcome:
    """One sample: ``error`` is empty if it agrees with LLVM and the checker is silent."""

    case: Case
    error: str


def lowered(case: Case) -> tvm.IRModule:
    """The one PrimFunc of the operator, as MetaSchedule wants it."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"p{i}", relax.TensorType(shape, case.dtype))
        for i, shape in enumerate(case.shapes)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(case.expression(*params))
        builder.emit_func_output(result)
    module = relax.transform.LegalizeOps()(builder.get())
    functions = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(functions) == 1
    return tvm.IRModule({"main": functions[0].with_attr("global_symbol", "main")})


def samples(case: Case, count: int, seed: int = 1) -> Iterator[s_tir.Schedule]:
    """``count`` schedules with random decisions that pass MetaSchedule's post-processors."""
    # Registers the intrinsics of tensor cores, which takes most of a minute.
    importlib.import_module("tvm.s_tir.tensor_intrin.cuda")
    module = lowered(case)
    # The generator applies its rules with the target's limits.
    space = ms.space_generator.PostOrderApply(
        sch_rules=case.space, postprocs=case.space, mutator_probs=case.space
    )
    context = ms.TuneContext(
        mod=module,
        target=TARGET,
        space_generator=space,
        search_strategy="replay-trace",
        task_name=case.name,
        rand_state=seed,
        num_threads=1,
    )
    designs = context.generate_design_space()
    found = 0
    for attempt in range(count * ATTEMPTS):
        trace = designs[attempt % len(designs)].trace
        schedule = s_tir.Schedule(module, seed=seed * 1000 + attempt + 1)
        fresh = s_tir.schedule.Trace(list(trace.insts), {})
        try:
            fresh.apply_to_schedule(schedule, remove_postproc=True)
        except s_tir.ScheduleError:
            continue  # decisions that exclude each other
        schedule.enter_postproc()
        if all(processor.apply(schedule) for processor in space.postprocs):
            yield schedule
            found += 1
        if found == count:
            return


def run_samples(case: Case, count: int) -> list[Outcome]:
    """Run ``count`` samples with the checker on, each against the LLVM build of the function."""
    module = lowered(case)
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype(case.dtype) for shape in case.shapes]
    output = module["main"].params[-1]
    shape, dtype = [int(extent) for extent in output.shape], str(output.dtype)
    expected = tvm.runtime.empty(shape, dtype)
    tvm.compile(module, target="llvm")["main"](*map(tvm.runtime.tensor, arrays), expected)
    tolerance = 2e-2 if case.dtype == "float16" else 1e-4
    outcomes = []
    for schedule in samples(case, count):
        error = ""
        with cudasim.device(check=True, time_budget=60) as session:
            gpu = tvm.cuda(0)
            try:
                with tvm.transform.PassContext(disabled_pass=["tirx.StorageRewrite"]):
                    kernel = tvm.compile(schedule.mod, target=TARGET)
                result = tvm.runtime.empty(shape, dtype, gpu)
                kernel["main"](*(tvm.runtime.tensor(array, gpu) for array in arrays), result)
                if not np.allclose(
                    result.numpy(), expected.numpy(), rtol=tolerance, atol=tolerance
                ):
                    error = "differs from LLVM"
            except (RuntimeError, ValueError, TypeError) as failure:
                error = str(failure).strip().split("\n")[-1]
        if session.findings:
            error = str(session.findings[0])
        outcomes.append(Outcome(case, error or ("" if session.launches else "no launch")))
    return outcomes


def main(count: int) -> None:
    """Print how many samples of each case agree, and why the others do not."""
    for case in CASES:
        outcomes = run_samples(case, -(-count // len(CASES)))
        errors = collections.Counter(o.error[:150] for o in outcomes if o.error)
        good = sum(not o.error for o in outcomes)
        print(f"{case.name:<8} {case.space:<16} {good} of {len(outcomes)} agree", flush=True)
        for text, times in errors.items():
            print(f"    {times} x {text}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 104)
