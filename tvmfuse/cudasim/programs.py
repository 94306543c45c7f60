"""Small programs for the mutation table: operators under TVM's pipeline, ``cp.async`` matmuls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfuse.cudasim.device import device
from tvmfuse.cudasim.mutation import Verdict, judge

TARGET = "nvidia/nvidia-a100"
TILE = 16
Shapes = tuple[tuple[int, ...], ...]


def operator_programs() -> dict[str, tuple[Callable[..., Any], Shapes]]:
    """Operator and input shapes (float32) by name; odd sizes, so that kernels check bounds."""
    from tvm.relax import op

    return {
        "relu": (op.nn.relu, ((1500,),)),
        "add": (op.add, ((40, 70), (70,))),
        "sum": (lambda a: op.sum(a, axis=[1]), ((5, 1000),)),
        "softmax": (op.nn.softmax, ((6, 200),)),
        "layer_norm": (
            lambda a, g, b: op.nn.layer_norm(a, g, b, axes=[-1]),
            ((9, 100), (100,), (100,)),
        ),
        "matmul": (op.matmul, ((50, 40), (40, 36))),
        "transpose": (op.permute_dims, ((50, 60),)),
        "max_pool": (lambda a: op.nn.max_pool2d(a, (2, 2), (2, 2)), ((1, 3, 10, 10),)),
    }


# Buffers in flight of each cp.async matmul.
ASYNC_PROGRAMS = {"async matmul 2": 2, "async matmul 3": 3}


def program_names() -> tuple[str, ...]:
    """Every program that ``judged`` takes."""
    return (*operator_programs(), *ASYNC_PROGRAMS)


def judged(name: str, limit: int = 0) -> list[Verdict]:
    """Verdicts on the mutants of one program, the first ``limit`` of a kind (0: all).

    Raises:
        KeyError: there is no such program.
        ValueError: the intact kernel is not silent.
    """
    import tvm
    from tvm import relax

    rng = np.random.default_rng(0)
    with device(check=True, time_budget=20) as session:
        gpu = tvm.cuda(0)

        def on_device(shapes: Shapes) -> list[Any]:
            arrays = (rng.standard_normal(shape).astype("float32") for shape in shapes)
            return [tvm.runtime.tensor(array, gpu) for array in arrays]

        if name in ASYNC_PROGRAMS:
            size = 4 * TILE
            kernel = build_async_matmul(size, ASYNC_PROGRAMS[name])
            operands = on_device(((size, size), (size, size)))

            def multiply() -> np.ndarray:
                result = tvm.runtime.empty((size, size), "float32", gpu)
                kernel["main"](*operands, result)
                return result.numpy()

            return judge(session, multiply, cuda_source(kernel.mod), limit)
        operator, shapes = operator_programs()[name]
        executable = tvm.compile(
            operator_module(operator, shapes), target=tvm.target.Target(TARGET)
        )
        machine = relax.VirtualMachine(executable, gpu, memory_cfg="naive")
        inputs = on_device(shapes)
        source = cuda_source(executable.mod)
        return judge(session, lambda: machine["main"](*inputs).numpy(), source, limit)


def operator_module(operator: Callable[..., Any], shapes: Shapes) -> Any:
    """Relax module whose main applies one operator to float32 inputs of these shapes."""
    from tvm import relax

    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"p{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(operator(*params))
        builder.emit_func_output(result)
    return builder.get()


def build_async_matmul(size: int, buffers: int) -> Any:
    """A float32 matmul whose tiles arrive by ``cp.async``, ``buffers`` tiles deep.

    TVM's software pipeline issues the copies ``buffers - 1`` steps ahead and waits for the oldest.
    ``size`` is a multiple of 16. Within a session of the device.
    """
    import tvm
    from tvm import s_tir, te

    a = te.placeholder((size, size), "float32", name="A")
    b = te.placeholder((size, size), "float32", name="B")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=[k]), name="C")
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, c])}))
    block = schedule.get_sblock("C")
    i, j, k_loop = schedule.get_loops(block)
    block_i, thread_i = schedule.split(i, [None, TILE])
    block_j, thread_j = schedule.split(j, [None, TILE])
    step, inner = schedule.split(k_loop, [None, TILE])
    schedule.reorder(block_i, block_j, thread_i, thread_j, step, inner)
    for loop, axis in zip(
        (block_i, block_j, thread_i, thread_j),
        ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"),
        strict=True,
    ):
        schedule.bind(loop, axis)
    for operand in (0, 1):
        tile = schedule.cache_read(block, operand, "shared")
        schedule.compute_at(tile, step)
        rows, columns = schedule.get_loops(tile)[-2:]
        schedule.bind(rows, "threadIdx.y")
        schedule.bind(columns, "threadIdx.x")
    schedule.annotate(step, "software_pipeline_stage", [0, 0, buffers - 1])
    schedule.annotate(step, "software_pipeline_order", [0, 1, 2])
    schedule.annotate(step, "software_pipeline_async_stages", [0])
    schedule.decompose_reduction(block, step)
    with tvm.transform.PassContext(config={"tirx.use_async_copy": True}):
        return tvm.compile(schedule.mod, target=tvm.target.Target(TARGET))


def cuda_source(module: Any) -> str:
    """Printed CUDA of a module or of the first import that has some; empty if there is none."""
    if module.kind == "cuda":
        return str(module.inspect_source())
    return next((text for m in module.imports if (text := cuda_source(m))), "")
