"""The crash campaign in short, and the planted faults that it must find. The long run is `make faults`.

A run that failed is repeated, as far as chance allows, with the seed that it printed: FAULTS_SEED=... python -m pytest tests/faults
"""

import os
import random
from pathlib import Path

import planted
import pytest
from campaign import SHORT, Plan, carry_out, caught

SEED = int(os.environ.get("FAULTS_SEED") or random.randrange(1 << 20))


@pytest.mark.parametrize("plan", SHORT, ids=lambda plan: plan.name)
def test_no_promise_is_broken_though_processes_are_killed_and_stopped_at_any_moment(tmp_path: Path, plan: Plan) -> None:
    report = carry_out(plan, tmp_path, SEED)
    print(f"seed {SEED}: {report}")
    assert not report.violations, f"seed {SEED}: {report}"
    assert report.kills >= plan.kills
    assert report.acknowledged > 0


@pytest.mark.parametrize("mutant", planted.MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_fault_that_is_planted_is_found(tmp_path: Path, mutant: planted.Mutant) -> None:
    for report in caught(mutant, tmp_path, SEED, limit=60):
        print(f"seed {SEED}: {report}")
    assert mutant.found(report), f"seed {SEED}: {report}"


def test_a_planted_fault_that_bites_no_longer_is_told() -> None:
    with pytest.raises(LookupError, match="bites no longer"):
        planted.alter("CLAIM", ("AND moon = 'full'", ""))
    with pytest.raises(LookupError, match="bites no longer"):
        planted.swap(planted.Group, "sing", lambda method: method)
