"""What a soak draws and how it judges; the soak itself is `make soak`."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from loadtest.soak import pool_plan
from loadtest.soak.ledger import Ledger
from loadtest.soak.plan import AGENTS, STEADY, WEIGHTS, actions
from loadtest.soak.watch import WARM_UP, Rest, disk_bytes, growth, leaks


def rests(**by_name: list[float]) -> list[Rest]:
    """Samples a minute apart, of these values."""
    rows = zip(*by_name.values(), strict=True)
    plain = {"fds": 40, "threads": 12, "tasks": 9, "anon_mib": 60.0}
    return [
        Rest(pid=1, minute=float(n), **plain | dict(zip(by_name, row, strict=True)))
        for n, row in enumerate(rows)
    ]


def test_a_seed_gives_its_actions_again() -> None:
    one, again, other = (list(itertools.islice(actions(seed), 200)) for seed in (5, 5, 6))
    assert one == again
    assert one != other


def test_every_kind_comes_and_the_steady_ones_are_never_killed() -> None:
    drawn = list(itertools.islice(actions(1), 2000))
    assert Counter(a.kind for a in drawn).keys() == WEIGHTS.keys()
    killed = {n for a in drawn if a.kind in ("kill", "restart") for n in a.agents}
    assert killed == set(range(STEADY, AGENTS))


def test_flows_of_the_pool_and_whom_they_kill_come_again_from_a_seed() -> None:
    one, again = (list(itertools.islice(pool_plan.steps(5), 3000)) for _ in range(2))
    assert one == again
    assert Counter(step.flow for step in one).keys() == pool_plan.WEIGHTS.keys()
    struck = Counter((step.flow, step.victim) for step in one if step.victim)
    assert {flow for flow, _ in struck} == pool_plan.WEIGHTS.keys()
    assert {victim for _, victim in struck} == {"agent", "tracker", "command"}
    assert all(step.flow in pool_plan.BY_COMMAND for step in one if step.victim == "command")
    assert sum(struck.values()) > 0.5 * len(one)


def test_what_was_acknowledged_must_hold_and_what_was_cut_short_may() -> None:
    ledger = Ledger()
    assert ledger.begin("a")
    assert not ledger.begin("a"), "somebody changes it"
    ledger.end("a", "there", outcome=True)
    ledger.begin("b")
    ledger.end("b", "there", outcome=None)
    ledger.begin("c")
    ledger.end("c", "there", outcome=False)
    assert ledger.settle({"a": "there", "b": "there"}) == []
    assert ledger.settle({"a": "there"}) == ["b is 'gone', not 'there'"]
    ledger.begin("a")
    ledger.end("a", "", outcome=None)
    assert ledger.may_be("a") == {"there", ""}
    assert ledger.settle({}) == []
    assert ledger.settle({"c": "there"}) == ["c is 'there', not 'absent'"]


def test_what_grows_after_the_warm_up_is_a_leak() -> None:
    assert leaks(rests(fds=[40, 80, 90, 100, 110, 120])) == ["fds grew by 30.0 in 3 minutes"]
    assert leaks(rests(fds=[40, 80, 90, 88, 91, 89], anon_mib=[60, 90, 110, 112, 108, 111])) == []


def test_too_few_samples_give_no_verdict() -> None:
    assert growth(rests(fds=[1.0] * (WARM_UP + 2))) == {}


def test_disk_space_is_counted_once_per_file(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(bytes(1 << 20))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").hardlink_to(tmp_path / "blob")
    assert disk_bytes(tmp_path) == pytest.approx(1 << 20, abs=32 << 10)
