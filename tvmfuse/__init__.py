"""tvmfuse: operator fusion for Apache TVM Relax.

Public names load on first use, so that ``import tvmfuse`` is quick, and so that a device can be
set up (``tvmfuse.cudasim``) or a version mismatch reported before TVM is loaded.
"""

from __future__ import annotations

import importlib
from typing import Any

from .versions import require_matching_versions

require_matching_versions()

_HOME = {
    "Fuse": "compiler",
    "Graph": "graph",
    "Growth": "pattern",
    "Match": "pattern",
    "MatchContext": "pattern",
    "Options": "options",
    "Pattern": "pattern",
    "Rejection": "pattern",
    "Report": "report.data",
    "Schedule": "compiler",
    "TvmfuseError": "errors",
    "build_graph": "graph",
    "compile": "compiler",
    "from_torch": "torch_backend",
    "load": "frontends",
    "optimize": "job",
    "pipeline": "compiler",
}
__all__ = [*sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tvmfuse' has no attribute {name!r}")
    module = importlib.import_module(f".{_HOME[name]}", __name__)
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
