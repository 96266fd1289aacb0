"""The deciders decide in a fixed matrix of storms as recorded.

A change that is meant to change decisions records the file again (`python -m loadtest.traces record`) and says in its
commit which rows moved by how much.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import traces
from p2pcache.sim.scenarios import Storm

GOLDEN = json.loads(Path(__file__).with_name("traces.json").read_text())


@pytest.mark.slow
def test_storms_decide_as_recorded() -> None:
    assert list(traces.differences(GOLDEN, short=True)) == []


def test_a_changed_decision_changes_the_trace() -> None:
    name, storm = next(traces.storms(short=True))
    assert traced_with_another_seed(storm) != GOLDEN[name]


def traced_with_another_seed(storm: Storm) -> dict[str, object]:
    return traces.traced(replace(storm, seed=99))
