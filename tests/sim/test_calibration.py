"""What the simulator predicts against what real agents did: `recorded/shapes.json` holds the rows of `make shapes`.

They are storms of real agents in network namespaces, each with the goodput that its own run measured. Only what the
comparison needs is kept of them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from p2pcache.sim.__main__ import main
from p2pcache.sim.calibrate import compare

SHAPES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "recorded" / "shapes.json").read_text()
)
CALM = SHAPES["1 MiB, storage at half"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_the_last_node_is_done_when_the_simulator_predicts(name: str) -> None:
    comparison = compare(SHAPES[name])
    assert abs(comparison.error) <= 0.05, comparison
    assert abs(comparison.predicted_alpha - comparison.alpha) <= 0.01, comparison
    assert comparison.predicted >= comparison.bound


@pytest.mark.slow
def test_the_command_shows_the_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "storm.json"
    file.write_text(json.dumps(CALM))
    assert main(["calibrate", str(file)]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["nodes", "T_LB", "measured", "predicted", "error"]
    assert row.endswith("%")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "isn't what loadtest.storm --json writes"),
        ("{}", "isn't what loadtest.storm --json writes"),
        ('{"plan": {"nodes": 0}}', "isn't what loadtest.storm --json writes"),
        (
            "late",
            "the storm had late-join: only calm ones, and those with one slow node, on one flat",
        ),
        ("racks", "the storm had racks"),
        ("unfinished", "not all nodes were done"),
    ],
)
def test_files_that_cannot_be_compared_are_refused(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = CALM
    changed = {
        "late": {"plan": recorded["plan"] | {"faults": ["late-join"]}},
        "racks": {"plan": recorded["plan"] | {"racks": 2}},
        "unfinished": {"t_last": None},
    }
    file = tmp_path / "r.json"
    file.write_text(json.dumps(recorded | changed[text]) if text in changed else text)
    assert main(["calibrate", str(file)]) == 2
    assert f"{file}: {says}" in capsys.readouterr().err
    assert main(["calibrate", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
