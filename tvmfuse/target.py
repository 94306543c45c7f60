"""Turn what a user types after ``--target`` into a TVM target that names the machine exactly."""

from __future__ import annotations

import difflib
import os
import sys

from tvm.target import Target, codegen
from tvm.target.tag import list_tags

from .errors import TargetError

# Opt-in shared memory of one block in bytes by compute capability (CUDA C Programming Guide,
# "Technical Specifications per Compute Capability").  TVM's tags carry the 48 KB default, which
# rejects most tensor-core kernels of these machines.
SHARED_MEMORY = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}


def resolve_target(target: str | dict | Target) -> Target:
    """The full target of a kind (``llvm``, ``cuda``), a tag, an arch (``sm_80``) or a dict.

    ``llvm`` without ``mcpu`` means this CPU with all its features: without them TVM generates
    SSE code, 5 times slower on one register-tiled matmul.  A CUDA target gets the shared memory
    that its architecture really has.  Raises TargetError for anything else, with the nearest
    known name.
    """
    if isinstance(target, str):
        target = _from_text(target.strip())
    elif isinstance(target, dict):
        target = _construct(target, str(target.get("kind") or target.get("tag")))
    kind = target.kind.name
    if kind == "llvm":
        return _host_features(target)
    if kind == "cuda":
        return _real_shared_memory(target)
    raise TargetError(f"tvmfuse compiles for llvm and cuda; target {kind!r} is neither")


def _from_text(text: str) -> Target:
    if text in ("llvm", "cpu"):
        return Target("llvm")
    if text == "cuda":
        return Target({"kind": "cuda", "arch": "sm_80"})
    if text.startswith("sm_") and text[3:5].isdigit():
        return Target({"kind": "cuda", "arch": text})
    tags = [str(tag) for tag in list_tags()]
    if text in tags:
        return Target({"tag": text})
    known = ["llvm", "cuda", *tags]
    near = difflib.get_close_matches(text, known, n=1, cutoff=0.0)
    raise TargetError(
        f"TVM knows no target {text!r}; the nearest name is {near[0]!r} "
        "(or give an architecture such as sm_90)"
    )


def _construct(config: dict, name: str) -> Target:
    try:
        return Target(config)
    except (ValueError, TypeError, RuntimeError) as error:
        cause = str(error).strip().splitlines()[-1]
        raise TargetError(f"TVM refuses the target {name!r}: {cause}") from error


def _host_features(target: Target) -> Target:
    if target.attrs.get("mcpu"):
        return target
    config = {
        "kind": "llvm",
        "mtriple": codegen.llvm_get_system_triple(),
        "mcpu": codegen.llvm_get_system_cpu(),
        "num-cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
    }
    return Target(config)


def _real_shared_memory(target: Target) -> Target:
    shared = SHARED_MEMORY.get(compute_capability(target))
    config = dict(target.export())
    if shared is None or int(config.get("max_shared_memory_per_block", 0)) >= shared * 1024:
        return target
    config.pop("tag", None)
    config["max_shared_memory_per_block"] = shared * 1024
    return Target(config)


def compute_capability(target: Target) -> int:
    """90 of ``sm_90a``; raises TargetError where the target names no architecture."""
    arch = str(target.attrs.get("arch", ""))
    digits = "".join(c for c in arch.removeprefix("sm_") if c.isdigit())
    if not digits:
        raise TargetError(f"the CUDA target names no architecture (arch={arch!r}); give arch=sm_90")
    return int(digits)


def runs_here(target: Target) -> bool:
    """True if this machine can execute what is compiled for ``target``."""
    if target.kind.name == "cuda":
        import tvm

        # The emulated device, once loaded, looks to TVM like a real one.
        emulated = sys.modules.get("tvmfuse.cudasim.device")
        return bool(tvm.cuda(0).exist) and (emulated is None or not emulated.is_loaded())
    return str(target.attrs.get("mtriple", "")).split("-")[0] == os.uname().machine
