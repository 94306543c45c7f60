"""The checker is silent on intact kernels and reports their harmful mutants."""

from __future__ import annotations

import pytest

from tvmfuse.cudasim.mutation import Verdict, table
from tvmfuse.cudasim.programs import judged, program_names

ORDER = ("dropped barrier", "dropped wait")


def missed(verdicts: list[Verdict]) -> list[Verdict]:
    """Mutants without their order that change the result and that the checker did not see."""
    return [v for v in verdicts if v.outcome == "wrong result" and v.mutant.kind in ORDER]


@pytest.mark.parametrize("name", ["relu", "softmax", "sum"])
def test_harmful_mutants_are_reported(name: str) -> None:
    verdicts = judged(name, limit=2)
    assert verdicts
    assert not missed(verdicts), table({name: verdicts})
    assert any(v.outcome == "reported" for v in verdicts), table({name: verdicts})


def test_every_dropped_wait_and_barrier_of_an_async_pipeline_is_reported() -> None:
    """Also the last wait, whose tile holds older data that looks initialised."""
    verdicts = [v for v in judged("async matmul 2") if v.mutant.kind in ORDER]
    assert [v.mutant.kind for v in verdicts].count("dropped wait") == 2
    assert {v.outcome for v in verdicts} == {"reported"}, table({"async matmul 2": verdicts})


@pytest.mark.slow
def test_table_of_all_mutants() -> None:
    """``tvmfuse cudasim mutants`` prints the table."""
    verdicts = {name: judged(name) for name in program_names()}
    assert len(verdicts) >= 8
    assert not [v for program in verdicts.values() for v in missed(program)], table(verdicts)
