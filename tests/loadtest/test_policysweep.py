"""The sweep of the knobs: it marks the defaults that the code has, and draws what it measured."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from loadtest.policysweep import KNOBS, main
from p2pcache.sim.scenarios import Storm

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_at_its_default_changes_nothing(name: str) -> None:
    knob = KNOBS[name]
    assert len(name) <= 36, "it runs into the next plot"
    assert knob.default in knob.values, "a default that isn't swept can't be compared"
    assert Storm(**knob.turned(knob.default)) == Storm()
    assert all(Storm(**knob.turned(x)) != Storm() for x in knob.values if x != knob.default)


def test_a_small_sweep_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("neighbours", "owner's patience, s")
    flags = [word for name in names for word in ("--only", name)]
    out = tmp_path / "new"
    assert main([str(out), "--runs", "8", "--nodes", "2", "3", "--seeds", "1", *flags]) == 0
    assert "neighbours 24, 3 nodes: eta 0." in capsys.readouterr().out
    found = json.loads((out / "policies.json").read_text())
    assert [value for value, _ in found["neighbours"]["3"]] == [6, 12, 24, 40]
    assert all(0 < eta <= 1 for curves in found.values() for c in curves.values() for _, eta in c)
    drawn = ET.parse(out / "policies.svg").getroot()
    words = ["".join(text.itertext()) for text in drawn.iter(f"{SVG}text")]
    assert {*names, "tracker lost for good at 30 %"} < set(words)
    dots = [dot.attrib["fill"] for dot in drawn.iter(f"{SVG}circle")]
    assert len(dots) == 16
    assert len([fill for fill in dots if fill != "white"]) == 4, "a default on each curve"
    width, height = (float(n) for n in drawn.attrib["viewBox"].split()[2:])
    for dot in drawn.iter(f"{SVG}circle"):
        assert 0 < float(dot.attrib["cx"]) < width
        assert 0 < float(dot.attrib["cy"]) < height


def test_what_cannot_be_swept_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    small = ["--runs", "1", "--nodes", "1", "--seeds", "1", "--only", "neighbours"]
    assert main([str(tmp_path / "file"), *small]) == 2
    assert "policysweep: " in capsys.readouterr().err
    for flags in (
        [],
        ["--help"],
        [str(tmp_path / "x"), "--only", "luck"],
        [str(tmp_path / "x"), "--runs", "0"],
    ):
        with pytest.raises(SystemExit):
            main(flags)
    assert not (tmp_path / "x").exists()
