"""Flags that can't work are refused before anything is measured: a run's minutes aren't lost at its end."""

import importlib
import sys

import pytest

REFUSED = [
    ("bench", ["--json", "/nope/x.json"], "argument --json: there is no directory /nope"),
    ("bench", ["--json", "/tmp"], "argument --json: /tmp is a directory"),
    ("serving", ["--nodes", "1"], "argument --nodes: at least 2"),
    ("serving", ["--rate", "0"], "argument --rate: more than 0"),
    ("serving", ["--turns", "0"], "argument --turns: at least 1"),
    ("serving", ["--latency", "soon"], "argument --latency: not a duration: 'soon'"),
    ("edge", ["--rate", "quick"], "argument --rate: not a rate: 'quick'"),
    ("edge", ["--size", "1"], "argument --size: at least 64KiB"),
    ("edge", ["--rounds", "-1"], "argument --rounds: at least 1"),
    ("edge", ["--loss", "2"], "argument --loss: between 0 and 1"),
    ("updown", ["--json", "/nope/x"], "argument --json: "),
    ("loopback", ["--pairs", "0"], "argument --pairs: at least 1"),
    ("trackerload", ["--agents", "0"], "argument --agents: at least 1"),
    ("loader_arriving", ["--rate", "0"], "argument --rate: more than 0"),
    ("loader_faults", ["--loads", "0"], "argument --loads: at least 1"),
    (
        "report",
        ["x.json", "-o", "/nope/report.html"],
        "argument -o/--output: there is no directory",
    ),
]


@pytest.mark.parametrize(("program", "flags", "says"), REFUSED)
def test_what_cannot_work_is_refused(
    program: str, flags: list[str], says: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", [program, *flags])
    module = importlib.import_module(f"loadtest.{program}")
    if hasattr(module, "__path__"):  # a package: `python -m` runs its __main__
        module = importlib.import_module(f"loadtest.{program}.__main__")
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
