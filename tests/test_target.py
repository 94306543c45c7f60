"""Targets: this CPU in full, real shared memory, and one clear line for anything unknown."""

from __future__ import annotations

import pytest
from tvm.target import codegen

from tvmfuse.errors import TargetError
from tvmfuse.target import compute_capability, resolve_target, runs_here


def test_llvm_means_this_cpu_with_its_features():
    target = resolve_target("llvm")
    assert target.attrs["mcpu"] == codegen.llvm_get_system_cpu()
    assert int(target.attrs["num-cores"]) >= 1
    assert runs_here(target)


def test_a_named_cpu_is_kept():
    assert resolve_target({"kind": "llvm", "mcpu": "skylake"}).attrs["mcpu"] == "skylake"


@pytest.mark.parametrize(
    ("name", "capability", "kilobytes"),
    [("nvidia/nvidia-h100", 90, 227), ("sm_80", 80, 163), ("sm_90a", 90, 227), ("cuda", 80, 163)],
)
def test_cuda_targets_have_their_real_shared_memory(name: str, capability: int, kilobytes: int):
    target = resolve_target(name)
    assert compute_capability(target) == capability
    assert int(target.attrs["max_shared_memory_per_block"]) == kilobytes * 1024


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("nvidia/nvidia-h10", "nvidia/nvidia-h100"), ("lvm", "llvm"), ("cudaa", "cuda")],
)
def test_an_unknown_target_suggests_the_nearest(name: str, nearest: str):
    with pytest.raises(TargetError, match=f"no target '{name}'; the nearest name is '{nearest}'"):
        resolve_target(name)


def test_other_backends_are_refused():
    with pytest.raises(TargetError, match="compiles for llvm and cuda"):
        resolve_target({"kind": "c"})
