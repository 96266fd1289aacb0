"""Storms without some rules: each rule can be switched off, and a table that was broken off goes on."""

import dataclasses
from pathlib import Path

import pytest

from p2pcache.core.mechanisms import Mechanisms
from p2pcache.core.settings import SwarmSettings
from p2pcache.sim import ablation
from p2pcache.sim.__main__ import main
from p2pcache.sim.scenarios import Run, Storm

CORE = Path(__file__).resolve().parents[2] / "p2pcache" / "core"


def test_each_rule_is_asked_for_somewhere_in_core() -> None:
    text = "".join(path.read_text() for path in CORE.rglob("*.py"))
    for field in dataclasses.fields(Mechanisms):
        assert f"on.{field.name}" in text, field.name


@pytest.mark.parametrize("rule", ["ask_ahead", "next_waits", "rarest", "window"])
def test_a_storm_without_a_rule_is_another_storm(rule: str) -> None:
    storm = Storm(nodes=8, runs=40, late=0.5, settings=SwarmSettings(window_runs=4))
    assert Run(ablation.without(storm, [rule])).go().trace != Run(storm).go().trace


def test_sets_of_rules_are_off_together() -> None:
    storm = ablation.without(Storm(), ["recall", "window", "endgame"])
    assert not storm.on.recall
    assert not storm.on.endgame
    assert storm.on.rarest
    assert storm.settings.window_runs > storm.runs


def test_a_table_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "results"
    first = list(ablation.Table(file).lines([("recall",)], ["quick pair"], runs=8, seeds=1))
    kept = file.read_text()
    assert len(kept.splitlines()) == 2, "with all rules, and without one"
    file.write_text("".join(line.replace("1.0,", "0.5,") + "\n" for line in kept.splitlines()))
    again = list(ablation.Table(file).lines([("recall",)], ["quick pair"], runs=8, seeds=1))
    assert len(file.read_text().splitlines()) == 2, "nothing was run again"
    assert len(again) == len(first) == 4
    assert again != first, "the figures are those of the file"


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--off", "recall+endgame", "--in", "quick pair", "--chunks", "8", "--seeds", "1"]
    assert main(["ablate", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[0] == ablation.NOTHING
    assert lines[3].split()[0] == "recall+endgame"


def test_an_unknown_rule_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ablate", "--off", "recall+magic"])
    assert ended.value.code == 2
    assert "no such rule: magic" in capsys.readouterr().err
