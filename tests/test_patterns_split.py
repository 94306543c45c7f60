"""Splits whose parts are computed with become slices in the kernels that read them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from fusion import check_fusion, groups_of, module, plan_of, random_inputs, run_stock
from tvm import relax

from tvmfuse.passes.split_parts import slices_of_splits

op = relax.op


def operators(mod: tvm.IRModule) -> list[str]:
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call):
                found.append(binding.value.op.name.removeprefix("relax."))
    return found


def gated(sections: object, axis: int):
    def body(emit, x):
        parts = emit(op.split(x, sections, axis), "parts")
        first, second = emit(parts[0], "first"), emit(parts[1], "second")
        return op.multiply(op.nn.silu(first), second)

    return body


@pytest.mark.parametrize(
    ("sections", "axis", "shape"), [(2, -1, (4, 16)), (2, 0, (4, 16)), ([8], 1, (2, 16, 3))]
)
def test_a_gate_over_a_split_is_one_kernel(sections, axis, shape) -> None:
    mod = module({"x": shape}, gated(sections, axis))
    before = tvm_ffi.structural_hash(mod)
    sliced = slices_of_splits(mod)
    assert tvm_ffi.structural_hash(mod) == before, "the caller's module was changed"
    assert operators(sliced).count("split") == 0
    slices = ["relax.strided_slice"] * 2
    assert sorted(groups_of(plan_of(sliced))[0]) == sorted(
        [*slices, "relax.nn.silu", "relax.multiply"]
    )
    arrays = random_inputs(mod)
    for found, wanted in zip(run_stock(sliced, arrays), run_stock(mod, arrays), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_uneven_sections_are_those_of_split() -> None:
    def body(emit, x):
        parts = emit(op.split(x, [3, 4], 1), "parts")
        return [op.exp(emit(parts[i], "part")) for i in range(3)]

    mod = module({"x": (2, 9)}, body)
    sliced = slices_of_splits(mod)
    assert operators(sliced).count("split") == 0
    arrays = random_inputs(mod)
    for found, wanted in zip(run_stock(sliced, arrays), run_stock(mod, arrays), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_split_with_a_part_that_leaves_the_function_stays() -> None:
    def body(emit, x):
        parts = emit(op.split(x, 2, 1), "parts")
        return parts[0], op.exp(emit(parts[1], "second"))

    assert operators(slices_of_splits(module({"x": (4, 16)}, body))).count("split") == 1


def test_a_gate_that_fuses_with_its_slices_has_the_right_numbers() -> None:
    mod = slices_of_splits(module({"x": (4, 16)}, gated(2, 1)))
    names = "strided_slice strided_slice nn.silu multiply".split()
    plan = plan_of(mod)
    check_fusion(mod, groups=groups_of(plan))
    assert sorted(groups_of(plan)[0]) == sorted(f"relax.{name}" for name in names)
