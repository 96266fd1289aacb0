"""Random storms with faults keep the laws: all who live get all of it, and storage isn't hammered.

`make sim-properties` runs thousands. Storms that failed once are lines of regressions.jsonl: origins
slower than a lease's patience, holders that nobody can dial, a partition that the tracker doesn't see.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from p2pcache.sim.__main__ import main
from p2pcache.sim.cluster.environment import Pause
from p2pcache.sim.properties import (
    alpha_bound,
    failures,
    kept,
    longest_pause,
    random_storm,
    revived,
    verdict,
)
from p2pcache.sim.scenarios import Run, Storm

REGRESSIONS = (Path(__file__).parent / "regressions.jsonl").read_text().splitlines()
BATCH = 20  # of the first sixty storms; `make sim-properties` runs thousands of others


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 3 * BATCH, BATCH))
def test_random_storms_keep_the_laws(first: int) -> None:
    broken = [f"{law}: {kept(storm)}" for storm, law in failures(range(first, first + BATCH))]
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000_000, 1_000_020, BATCH))
def test_random_storms_with_holders_that_deliver_nothing_keep_the_laws(first: int) -> None:
    broken = [f"{law}: {kept(storm)}" for storm, law in failures(range(first, first + BATCH))]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("line", REGRESSIONS)
def test_storms_that_failed_once_keep_the_laws(line: str) -> None:
    assert verdict(Run(revived(line))) is None


def test_a_kept_storm_is_revived_unchanged() -> None:
    for seed in range(50):
        storm = random_storm(seed)
        assert revived(kept(storm)) == storm
        assert storm == random_storm(seed)


def test_a_broken_law_is_reported() -> None:
    nobody_reads = Storm(nodes=2, runs=4, no_tracker_after=0.0, limit_s=1.0, limit=1.0)
    assert verdict(Run(nobody_reads)) == "2 of 2 nodes never got all of it"
    reread = Run(Storm(nodes=2, runs=100))
    origin = reread.cluster.origin
    reread.cluster.net.start([origin], 1e7, lambda: None)  # somebody reads past the leases
    assert "is the bound" in (verdict(reread) or "")


def test_a_storm_is_not_given_up_before_its_sources_could_have_served_it() -> None:
    """Nodes that nobody can dial get all from a slow one. The storm of seed 81057 ended after a fifth of that time."""
    storm = Storm(nodes=4, runs=32, slow=1 / 4, limit=2.0, limit_s=1.0)
    assert verdict(Run(replace(storm, hidden=3))) is None
    broken = verdict(Run(replace(storm, limit=0.2)))
    assert broken is not None
    assert "never got all of it" in broken


def test_a_crash_of_the_code_is_kept_like_any_broken_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Run) -> None:
        raise KeyError("run 7")

    monkeypatch.setattr(Run, "go", broken)
    ((storm, law),) = failures(range(3, 4))
    assert law == "KeyError: 'run 7'"
    assert storm == random_storm(3)


def test_the_bound_follows_the_faults() -> None:
    calm = Storm(nodes=4, runs=100)
    assert alpha_bound(Run(calm)) == pytest.approx(1.02)
    assert alpha_bound(Run(replace(calm, partition=(2, 2)))) == pytest.approx(2.02)
    assert alpha_bound(Run(replace(calm, slow=0.25))) == pytest.approx(1.03)


def test_hidden_nodes_may_read_for_themselves_where_few_bring_next_to_nothing() -> None:
    """At the bound for the others they would wait half an hour for four slow nodes, and storage stand idle."""
    few = Storm(nodes=5, runs=8, hidden=4)
    # The last one's storage is slow, not the links of its sources.
    many = Storm(nodes=16, runs=32, hidden=3, rate=1e8, origin_rate=2e6)
    for storm, bound in ((few, 4.25), (replace(few, slow=1.0), 8.875), (many, 2.0625)):
        run = Run(storm)
        run.go()
        assert alpha_bound(run) == pytest.approx(bound)


def test_a_pause_counts_without_what_excuses_it() -> None:
    calm = Storm(nodes=4, runs=100)
    run_s = calm.run_bytes / calm.rate
    for storm, excused_s in (
        (calm, 0.0),
        (replace(calm, outage=0.0, outage_s=7.0), 7.0),
        (
            replace(calm, outage=0.0, outage_s=7.0, frozen=0.0, frozen_s=1.0),
            11.0,
        ),  # + a read timeout
    ):
        run = Run(storm)
        run.cluster.pauses = [Pause(1, 0.0, 2.0), Pause(2, 0.0, 40.0)]
        assert longest_pause(run) == pytest.approx(40.0 - excused_s - 9 * run_s)


def test_a_liar_waits_while_others_read_what_it_has() -> None:
    """Nobody believes what it has, and it gets no leases: the others read in order, and what it lacks comes last."""
    storm = Storm(nodes=4, runs=100, liars=1, hung=1)
    run = Run(storm)
    model_s, run_s = storm.scale_s, storm.run_bytes / storm.rate
    honest, liar, hung = (
        run.cluster.add_node(**fault).node for fault in ({}, {"liar": True}, {"fault": "hung"})
    )
    for node, excused_s in ((honest, 9 * run_s), (liar, model_s), (hung, model_s)):
        run.cluster.pauses = [Pause(node, 0.0, 40.0)]
        assert longest_pause(run) == pytest.approx(40.0 - excused_s)


def test_a_long_pause_breaks_a_law() -> None:
    """Partial pulls in racks: a bridge that doesn't want a run doesn't bring it, so starved nodes ask anybody."""
    storm = Storm(nodes=24, runs=128, racks=3, parts=8)
    assert verdict(Run(storm)) is None
    late = replace(storm, settings=replace(storm.settings, stuck_after_s=60.0))
    assert "a node got nothing for" in (verdict(Run(late)) or "")


def test_the_command_keeps_failed_storms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["properties", "--count", "2", "--seed", "5"]) == 0
    assert "2 storms, 0 failures" in capsys.readouterr().out
    monkeypatch.setattr("p2pcache.sim.properties.alpha_bound", lambda _: 0.0)
    file = tmp_path / "failed.jsonl"
    assert main(["properties", "--count", "2", "--seed", "5", "--keep", str(file)]) == 1
    assert [json.loads(line)["seed"] for line in file.read_text().splitlines()] == [5, 6]
    with pytest.raises(SystemExit):
        main(["properties", "--count", "2", "--keep", "/nope/failed.jsonl"])
    assert "argument --keep: " in capsys.readouterr().err
