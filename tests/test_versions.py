"""A wrong ffi version is one sentence, before anything is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tvmfuse import versions
from tvmfuse.errors import InstallationError


def test_a_wrong_ffi_version_is_refused(monkeypatch: pytest.MonkeyPatch):
    wrong = {"apache-tvm": versions.TVM, "apache-tvm-ffi": "0.1.15"}
    monkeypatch.setattr(versions, "installed", wrong.get)
    with pytest.raises(InstallationError) as caught:
        versions.require_matching_versions()
    assert str(caught.value) == (
        "tvmfuse needs apache-tvm-ffi==0.1.14.post1, but 0.1.15 is installed; run "
        "pip install 'apache-tvm==0.27.0.post1' 'apache-tvm-ffi==0.1.14.post1'"
    )


def test_importing_the_package_loads_no_tvm():
    code = "import sys, tvmfuse; print('tvm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
