"""What real agents record is lived again by the production scheduler."""

import asyncio
import random
from pathlib import Path

import msgspec
import pytest

from loadtest.replay import as_text, main, replay
from p2pcache.core.scheduler import recording
from p2pcache.core.swarm.events import Tick
from p2pcache.io.notes.recorder import SUFFIX, Recorder
from tests.agent.kit import agent, make_model, pull, push
from tests.core.scheduler.test_recording import make_head
from tests.tracker.kit import tracker

SIZE = 8_000_000  # 31 runs


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    files = {"weights.bin": random.Random(5).randbytes(SIZE)}
    push(tmp_path / "origin", make_model(tmp_path / "model", files), "team/m:v1")
    return tmp_path / "origin"


def recordings(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


async def record_two(tmp_path: Path, origin: Path) -> list[Path]:
    """Two agents of one swarm pull at once; each records."""
    async with tracker(origin) as hub:
        url = f"http://{hub.address}"
        async with (
            agent(tmp_path, "a", tracker=url, record_dir=str(tmp_path / "ra")) as a,
            agent(tmp_path, "b", tracker=url, record_dir=str(tmp_path / "rb")) as b,
        ):
            ended = await asyncio.gather(pull(a, "team/m:v1"), pull(b, "team/m:v1"))
            assert [done["event"] for done in ended] == ["done", "done"]
            assert sum(done["bytes_peers"] for done in ended) > 0
    return [*recordings(tmp_path / "ra"), *recordings(tmp_path / "rb")]


async def test_a_real_pull_replays(
    tmp_path: Path, origin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = await record_two(tmp_path, origin)
    assert len(files) == 2
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600
        result = replay(path)
        assert not result.fault
        assert not result.cut
        assert result.scheduler.complete
        assert result.moments[-1].have == len(result.head.run_bytes)
        assert result.commands["Finished"] == 1
        assert result.events["RequestEnded"] == result.commands["Request"]
        assert main([str(path), "--run", str(len(result.head.run_bytes))]) == 2
        assert "this model has 0 to" in capsys.readouterr().err
        assert main([str(path), "--run", "0"]) == 0
        said = capsys.readouterr().out
        assert "the same answers throughout" in said
        assert "finished" in said
        assert "run 0:\n" in said


async def test_a_difference_is_found(
    tmp_path: Path, origin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = (await record_two(tmp_path, origin))[0]
    lines = path.read_bytes().splitlines(keepends=True)
    head = recording.read_head(lines[0])
    path.write_bytes(recording.head_line(msgspec.structs.replace(head, have="1")))
    with path.open("ab") as file:
        file.writelines(lines[1:])
    assert main([str(path)]) == 1
    assert "WRONG: line " in capsys.readouterr().out
    path.write_bytes(b"".join(lines[:9]) + lines[9][:5])  # as a crash leaves it
    cut = replay(path)
    assert cut.cut
    assert not cut.fault
    assert sum(cut.events.values()) == 8
    assert "incomplete" in as_text(cut)
    path.write_bytes(lines[0] + lines[-1])  # an end of what never began, or another answer
    assert replay(path).fault
    path.write_text("nothing\n")
    assert main([str(path)]) == 2
    assert main([str(tmp_path / "none")]) == 2


def test_recordings_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    head = make_head()
    for _ in range(8):
        recorder = Recorder(tmp_path / "r", 20_000, head)
        for number in range(1000):
            recorder.record(100.0 + number, Tick(), [])
        recorder.close()
        assert sum(path.stat().st_size for path in recordings(tmp_path / "r")) <= 20_000
    assert "record_bytes" in caplog.text
    assert recordings(tmp_path / "r")
    assert not replay(recordings(tmp_path / "r")[-1]).cut


def test_agents_that_begin_at_once_have_recordings_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_800_000_000_000_000_000)
    for node in ("1d", "1e"):
        head = msgspec.structs.replace(make_head(), node=node)
        Recorder(tmp_path, 20_000, head).close()
    assert len(recordings(tmp_path)) == 2
    assert not caplog.text


def test_a_disk_that_refuses_ends_the_recording_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    recorder = Recorder(tmp_path / "file", 20_000, make_head())
    recorder.record(100.0, Tick(), [])
    recorder.close()
    assert "can't record" in caplog.text
