"""The doctor names each gap, what it costs and how to close it."""

from __future__ import annotations

import pytest

from tvmfuse import doctor, versions


def by_check() -> dict[str, doctor.Finding]:
    return {finding.check: finding for finding in doctor.examine()}


def test_a_machine_that_runs_the_tests_has_no_errors():
    findings = by_check()
    assert not [finding for finding in findings.values() if finding.level == "error"]
    assert findings["apache-tvm-ffi"].found == versions.FFI
    assert "-bit vectors" in findings["CPU of --target llvm"].found
    assert findings["import tvm"].found.endswith(" s")


def test_every_gap_has_an_advice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "installed", lambda package: None)
    monkeypatch.setattr(doctor.shutil, "which", lambda *args, **kwargs: None)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    findings = by_check()
    assert findings["apache-tvm"].level == "error"
    assert findings["apache-tvm"].advice.endswith("pip install 'apache-tvm==0.27.0.post1'")
    assert findings["C++ compiler"].level == "error" and "g++" in findings["C++ compiler"].advice
    assert findings["nvcc"].level == "note" and findings["torch"].level == "note"
    assert findings["OPENBLAS_CORETYPE"].advice.endswith("unset it before benchmarks")
    assert all(finding.advice for finding in findings.values() if finding.level != "ok")


def test_more_threads_than_cores_are_noted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "usable_cores", lambda: list(range(99)))
    finding = by_check()["cores"]
    assert finding.level == "note" and "set TVM_NUM_THREADS=99" in finding.advice
