"""A bar for a person, lines for a log."""

import io
import logging
import sys
from pathlib import Path

import pytest

import p2pcache
from p2pcache.loader import progress
from p2pcache.loader.plan.selection import select_tensors
from p2pcache.loader.progress import Progress
from p2pcache.loader.session import Session
from p2pcache.loader.source.catalog import open_catalog
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.stream import Tuning, start
from tests.loader.loader_kit import SlowSource, Spec, write


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (1000,)) for i in range(8)])
    return tmp_path


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    monkeypatch.setattr(progress, "BAR_AFTER_S", 0.0)


@pytest.mark.usefixtures("hasty")
def test_a_log_gets_lines(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "p2pcache.loader")
    p2pcache.load(folder)
    assert any(
        f"loading {folder}: 8.00 kB of 8.00 kB (100%)" in record.message
        for record in caplog.records
    )
    assert caplog.records[-1].message.startswith("loaded ")


def test_a_quick_load_shows_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "p2pcache.loader")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    p2pcache.load(folder)
    assert len(caplog.records) == 1
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("told", [None, True, False])
def test_a_terminal_gets_a_bar(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    told: bool | None,
) -> None:
    caplog.set_level(logging.INFO, "p2pcache.loader")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    p2pcache.load(folder, progress=told)
    lines = [record for record in caplog.records if record.message.startswith("loading ")]
    if told is False:
        assert lines
        assert terminal.getvalue() == ""
    else:
        assert not lines
        assert "100%" in terminal.getvalue()
        assert folder.name in terminal.getvalue()


def test_a_load_that_waits_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    """Nothing arrives for a while: the lines come all the same."""
    monkeypatch.setattr(progress, "LINE_S", 0.2)
    caplog.set_level(logging.INFO, "p2pcache.loader")
    source = SlowSource(folder)
    size = dict(source.files())["m.safetensors"]
    source.arrive("m.safetensors", 0, size - 8000)
    deadline = Deadline(3.0, "slow")
    session = Session(source, open_catalog(source, deadline), deadline)
    items = select_tensors(list(session.catalog.tensors.values()))
    with start(session, items, device="cpu", framework="raw", limit_bytes=1 << 20, owned=True,
               tuning=Tuning()) as stream, pytest.raises(p2pcache.errors.TimedOut):  # fmt: skip
        list(stream)
    lines = [record.message for record in caplog.records if "(0%)" in record.message]
    assert len(lines) >= 2


def test_an_empty_model_is_done() -> None:
    shown = Progress("nothing", 0, bar=False)
    shown.tick(0)
    shown.close(0)


def test_a_line_has_the_rate_of_a_thin_link(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "p2pcache.loader")
    clock = [100.0]
    monkeypatch.setattr("p2pcache.loader.progress.time.monotonic", lambda: clock[0])
    shown = Progress("team/m:v1", 24_700_000, bar=False)
    clock[0] += progress.LINE_S
    shown.tick(9_380_000)
    assert caplog.records[-1].message == "loading team/m:v1: 9.38 MB of 24.7 MB (38%), 938 kB/s"
