"""Random samples of MetaSchedule's CUDA spaces on the emulated device."""

from __future__ import annotations

import metaschedule_samples
import pytest
from metaschedule_samples import CASES, Case

# Samples that TVM itself builds wrongly, by the text of the error, with the reason.
TVM_DEFECTS = {
    "make_uint4": "TVM prints a wide vector as make_uint4 with more than four arguments",
}
SAMPLES = 13  # of each of the 8 cases: 104 together


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.space}-{case.name}")
def test_samples_agree_with_llvm_and_are_silent(case: Case) -> None:
    outcomes = metaschedule_samples.run_samples(case, SAMPLES)
    assert len(outcomes) == SAMPLES
    unexpected = [
        outcome.error
        for outcome in outcomes
        if outcome.error and not any(text in outcome.error for text in TVM_DEFECTS)
    ]
    assert not unexpected
