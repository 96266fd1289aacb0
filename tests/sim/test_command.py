"""The command `python -m p2pcache.sim storm`: what it prints, and which flags it refuses."""

import json
from pathlib import Path

import pytest

from p2pcache.sim.__main__ import main


def test_the_command_prints_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storm", "--nodes", "3", "--chunks", "16", "--partition", "2:1"]) == 0
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert lines["complete"] == "3"
    assert 0 < float(lines["eta"]) <= 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--nodes", "-1"],
        ["--chunks", "0"],
        ["--slow", "2"],
        ["--rate", "nan"],
        ["--rate", "0mbit"],
        ["--rate", "fast"],
        ["--json", "/nope/x"],
        ["--json", "/"],
        ["--liars", "-1"],
        ["--hidden", "-2"],
        ["--racks", "-1"],
        ["--oversubscribed", "0"],
        ["--latency", "-1"],
        ["--origin-latency", "nan"],
        ["--queue", "inf"],
        ["--no-tracker-after", "-1"],
        ["--tracker-restart", "nan"],
        ["--partition", "3"],
        ["--partition", "3:x"],
        ["--partition-s", "-1"],
        ["--check-every", "-1"],
    ],
)
def test_flags_that_make_no_storm_are_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["storm", *flags])
    assert ended.value.code == 2
    assert f"argument {flags[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--racks", "9"], "9 racks for 8 nodes"),
        (["--hidden", "9"], "9 hidden ones of 8 nodes"),
        (["--slow", "0.7", "--slow-disk", "0.7"], "--slow and --slow-disk are more than all nodes"),
        (["--partition", "6:6"], "a partition of 12 of 8 nodes"),
        (["--restart"], "--restart needs --crash"),
        (["--no-tracker", "--no-tracker-after", "0.3"], "--no-tracker leaves none"),
        (["--tracker-restart", "0.3", "--no-tracker-after", "0.3"], "for good or comes back"),
        (["--notes"], "--notes needs --tracker-restart"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["storm", "--nodes", "8", "--chunks", "8", *flags])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_rates_have_the_units_of_all_commands(tmp_path: Path) -> None:
    traces = set()
    for rate in ("6250000", "6.25e6", "50mbit", "6.25MB/s"):
        out = tmp_path / "out.json"
        assert (
            main(["storm", "--nodes", "2", "--chunks", "4", "--rate", rate, "--json", str(out)])
            == 0
        )
        traces.add(json.loads(out.read_text())["trace"])
    assert len(traces) == 1


def test_a_storm_that_never_ends_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    flags = ["--nodes", "3", "--chunks", "8", "--no-tracker-after", "0", "--json", str(out)]
    assert main(["storm", *flags]) == 1
    said = capsys.readouterr()
    assert "3 of the 3 nodes that live never got all of it" in said.err
    assert "t_last       -\n" in said.out
    found = json.loads(out.read_text(), parse_constant=pytest.fail)  # Infinity isn't JSON
    assert found["t_last"] is None
    assert found["eta"] == 0.0
