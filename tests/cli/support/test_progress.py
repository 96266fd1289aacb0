import contextlib
import io
import os
import pty
import sys
from typing import Any

import pytest

from p2pcache.cli.support.progress import (
    BAR_COLUMNS,
    BarReporter,
    LineReporter,
    Meter,
    fit_bar,
    make_reporter,
    peer_share,
)
from tests.cli.fake_agent import progress as event


def test_the_agent_s_rate_gives_the_eta() -> None:
    meter = Meter()
    assert meter.on_event(event(250, peers=200, origin=50), 1.0) == (
        "25%",
        "250 B of 1.00 kB",
        "100 B/s",
        "ETA 7.5s",
        "80% from 3 peers",
    )
    assert meter.share == 0.25


def test_without_a_rate_it_is_measured_and_smoothed() -> None:
    meter = Meter()
    plain = {"event": "progress", "bytes_total": 10_000}
    assert meter.on_event(plain | {"bytes_done": 0}, 0.1)[2] == ""
    assert meter.on_event(plain | {"bytes_done": 1000}, 1.1)[2] == "1.00 kB/s"
    assert meter.on_event(plain | {"bytes_done": 1100}, 1.2)[2] == "1.00 kB/s"  # too soon to tell
    slower = meter.on_event(plain | {"bytes_done": 1500}, 2.1)[2]
    assert slower == "833 B/s"


def test_a_new_phase_starts_a_new_measurement() -> None:
    meter = Meter()
    plain = {"event": "progress", "bytes_total": 1000}
    meter.on_event(plain | {"bytes_done": 0, "phase": "index"}, 1.0)
    meter.on_event(plain | {"bytes_done": 1000, "phase": "index"}, 2.0)
    assert meter.on_event(plain | {"bytes_done": 0, "phase": "upload"}, 2.5)[2] == ""


def test_an_event_without_figures_shows_zero_bytes() -> None:
    assert Meter().on_event({"event": "progress"}, 1.0) == ("", "0 B", "", "", "")
    assert peer_share({}) == ""


@pytest.mark.parametrize("reporter", [LineReporter, BarReporter])
def test_a_waiting_event_names_who_must_answer(
    reporter: type[LineReporter | BarReporter], capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = {"event": "waiting", "for": "storage s3://m\x1b[2J", "seconds": 3.0}
    reporter("pulling m").update(waiting)
    said = capsys.readouterr().err
    assert said.startswith("pulling m: waiting for storage s3://m")
    assert said.endswith("to answer (3.0s)\n")
    assert "\x1b" not in said


@pytest.mark.parametrize("kind", ["waiting", "progress"])
def test_the_message_of_storage_is_shown_while_we_wait_for_it(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("p2pcache.cli.support.progress.time.monotonic", lambda: now[0])
    reporter = LineReporter("pulling m")
    now[0] += 5.0  # longer than anybody should look at nothing
    reporter.update({"event": kind, "for": "storage", "seconds": 5.0, "trouble": "SlowDown\x1b[2J"})
    said = capsys.readouterr().err
    assert "SlowDown" in said
    assert "\x1b" not in said


def test_a_line_comes_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("p2pcache.cli.support.progress.time.monotonic", lambda: now[0])
    reporter = LineReporter("pulling a:b")
    reporter.update({"event": "resolved"})
    for _ in range(41):  # ten seconds of four events each
        now[0] += 0.25
        reporter.update(event(500))
    reporter.done({}, "pulled")
    assert capsys.readouterr().err.splitlines() == [
        "pulling a:b: 50%, 500 B of 1.00 kB, 100 B/s, ETA 5.0s"
    ] * 2 + ["pulled"]


def test_a_bar_leaves_nothing_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        reporter = make_reporter("pulling x:smile:", as_json=False, quiet=False)
        assert isinstance(reporter, BarReporter)
        reporter.update({"event": "resolved"})
        reporter.update(event(500, peers=300, origin=200))
        reporter.done({}, "pulled it")
        reporter.close()
    data = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed and all is read
        while part := os.read(master, 65536):
            data += part
    text = data.decode()
    os.close(master)
    assert "pulling x:smile:" in text
    assert "50%  500 B of 1.00 kB  100 B/s  ETA 5.0s  60% from 3 peers" in text
    assert text.rstrip().endswith("pulled it")


@pytest.mark.parametrize(("term", "kind"), [("dumb", LineReporter), ("xterm", BarReporter)])
def test_flags_and_terminal_choose_the_reporter(
    monkeypatch: pytest.MonkeyPatch, term: str, kind: type[Any]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(make_reporter("x", as_json=False, quiet=False), kind)
    assert not isinstance(make_reporter("x", as_json=False, quiet=True), kind)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "title",
    ["pulling m", "pulling a-team-of-long-name/a-model-of-a-longer-name-7b-instruct:2026-11-26"],
)
@pytest.mark.parametrize(
    "trouble",
    ["", "storage s3://models refuses our credentials: ExpiredToken, and says why at length"],
)
def test_the_bar_has_its_room(width: int, title: str, trouble: str) -> None:
    told = ("45%", "63.1 GB of 140 GB", "1.21 GB/s", "ETA 1m04s", "87% from 12 peers", "", trouble)
    shown, text = fit_bar(title, told, width)
    assert len(shown) + BAR_COLUMNS + len(text) + 2 <= width
    assert text.startswith("45%")
    assert shown == title or shown.endswith("26")  # a ref keeps the end of its tag
    if not trouble:
        assert "GB/s" in text
    if width >= 80 and trouble:
        assert "storage" in text


def test_a_long_ref_has_a_bar_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        reporter = make_reporter(
            "pulling a-team-of-long-name/a-model-of-a-longer-name:2026", as_json=False, quiet=False
        )
        reporter.update(event(500, peers=300, origin=200))
        reporter.close()
    data = os.read(master, 65536).decode()
    os.close(master)
    assert "\u2501" in data  # the bar itself
    assert "50%" in data
