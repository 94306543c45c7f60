"""The versions that this package was built against, checked before TVM can crash on others."""

from __future__ import annotations

import platform
from importlib import metadata

from .errors import InstallationError

TVM = "0.27.0.post1"
FFI = "0.1.14.post1"
REPORTED = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime", "torch")


def installed(package: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def require_matching_versions() -> None:
    """Raise InstallationError unless TVM and its ffi package are the pinned pair.

    apache-tvm-ffi 0.1.15, which pip resolves by itself, makes MetaSchedule of this TVM segfault,
    so it is refused before anything is loaded.
    """
    for package, wanted in (("apache-tvm", TVM), ("apache-tvm-ffi", FFI)):
        found = installed(package)
        if found != wanted:
            raise InstallationError(
                f"tvmfuse needs {package}=={wanted}, but {found or 'none'} is installed; run "
                f"pip install 'apache-tvm=={TVM}' 'apache-tvm-ffi=={FFI}'"
            )


def version_table() -> dict[str, str]:
    """Versions for report.json: this package, Python and what of REPORTED is installed."""
    table = {"tvmfuse": installed("tvmfuse") or "unknown", "python": platform.python_version()}
    for package in REPORTED:
        found = installed(package)
        if found is not None:
            table[package] = found
    return table
