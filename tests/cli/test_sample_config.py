"""The sample settings file against the code's defaults."""

import re
from pathlib import Path

import msgspec
import pytest

from p2pcache.cli.commands.program.config import SECTIONS
from p2pcache.io import config
from tests.cli.sample_config import render

SAMPLE = Path(__file__).parents[2] / "systemd/config.toml.sample"


def test_the_sample_is_up_to_date() -> None:
    hint = "run: python -m tests.cli.sample_config > systemd/config.toml.sample"
    assert SAMPLE.read_text() == render(), hint


@pytest.mark.parametrize("uncommented", [False, True])
def test_the_sample_says_the_defaults(tmp_path: Path, *, uncommented: bool) -> None:
    text = SAMPLE.read_text()
    path = tmp_path / "config.toml"
    path.write_text(re.sub(r"(?m)^#(?=\w+ = )", "", text) if uncommented else text)
    file = config.read_file(path)
    assert set(file.sections) == set(SECTIONS)
    for name, kind in SECTIONS.items():
        loaded = config.load(kind, name, file=file, environ={})
        assert loaded.settings == kind()
        fields = {field.name for field in msgspec.structs.fields(kind)}
        assert set(file.sections[name]) == (fields if uncommented else set())
