"""`import`: through an agent, and straight into the storage."""

import json
import os
from pathlib import Path

import pytest

from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.ids import Ref
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo
from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent, Handler
from tests.io.sources.kit import Web, serving


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a source that holds one model, `m`."""
    (tmp_path / "lake/m").mkdir(parents=True)
    (tmp_path / "lake/m/a.bin").write_bytes(os.urandom(700_000))
    (tmp_path / "lake/m/config.json").write_text("{}")
    (tmp_path / "origin").mkdir()
    url = f"file://{tmp_path}/lake"
    monkeypatch.setenv("P2PCACHE_SOURCES", f"lake={url}")
    return url


def test_without_an_agent_record_and_tag_are_written(run: Run, lake: str, tmp_path: Path) -> None:
    origin = f"file://{tmp_path}/origin"
    result = run("import", f"{lake}/m", "Team/m:v1", "--origin", origin)
    assert result.exit_code == 0, result.stderr
    printed = Ref.parse(result.stdout.strip())
    assert result.stdout.startswith("Team/m:v1@blake3:")
    repo = OriginRepo(open_origin(origin))
    assert repo.get_tag(printed).digest == printed.digest
    record = repo.sources_of(printed.digest or "")
    assert record is not None
    assert {place.key for places in record.blobs.values() for place in places} == {
        "m/a.bin",
        "m/config.json",
    }
    assert not list(repo.stored_blobs())
    # The pull of an agent that lives as long as the command reads the source.
    pulled = run("pull", "team/m:v1", "--origin", origin)
    assert pulled.exit_code == 0, pulled.stderr
    got = Path(pulled.stdout.strip())
    assert (got / "a.bin").read_bytes() == (tmp_path / "lake/m/a.bin").read_bytes()


def test_a_copy_stores_the_files(run: Run, lake: str, tmp_path: Path) -> None:
    origin = f"file://{tmp_path}/origin"
    result = run(
        "import", f"{lake}/m", "m", "--origin", origin, "--copy", "--exclude", "*.json", "--json"
    )
    assert result.exit_code == 0, result.stderr
    done = json.loads(result.stdout.splitlines()[-1])
    assert (done["event"], done["files"], done["bytes"], done["bytes_read"]) == (
        "done",
        1,
        700_000,
        700_000,
    )
    repo = OriginRepo(open_origin(origin))
    assert [size for _, size in repo.stored_blobs()] == [700_000]
    assert repo.sources_of(done["digest"].removeprefix("blake3:")) is None


def test_a_server_without_ranges(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "origin").mkdir()
    origin = f"file://{tmp_path}/origin"
    with serving(Web()) as web:
        web.files["/a.bin"] = os.urandom(100_000)
        web.ranges = False
        monkeypatch.setenv("P2PCACHE_SOURCES", f"w={web.url}")
        refused = run("import", f"{web.url}/a.bin", "m", "--origin", origin)
        assert isinstance(refused.exception, UsageError)
        assert "import with --copy" in str(refused.exception)
        monkeypatch.setenv("P2PCACHE_SOURCES", f"again={web.url}")  # this process holds the first
        done = run("import", f"{web.url}/a.bin", "m", "--origin", origin, "--copy")
        assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    ("source", "ref", "code", "says"),
    [
        ("hf://org/model", "m", 2, 'url = "hf://" below [sources.NAME]'),
        ("https://u:secret@h.example/m", "m", 2, "P2PCACHE_SOURCES=NAME=https://h.example"),
        ("https://h.example?sig=secret", "m", 2, "P2PCACHE_SOURCES=NAME=https://h.example"),
        ("./model", "m", 2, "`p2pcache push DIR REF`"),
        ("LAKE/none", "m", 3, "no such directory"),
        ("LAKE/m", f"m@blake3:{'0' * 64}", 2, "leave the digest out"),
    ],
)
def test_refusals(
    run: Run, lake: str, tmp_path: Path, source: str, ref: str, code: int, says: str
) -> None:
    url = source.replace("LAKE", lake)
    result = run("import", url, ref, "--origin", f"file://{tmp_path}/origin")
    assert isinstance(result.exception, P2PCacheError)
    assert result.exception.exit_code == code
    assert says in str(result.exception)
    assert "secret" not in str(result.exception)


def test_nowhere_to_write_to(run: Run, lake: str) -> None:
    result = run("import", f"{lake}/m", "m")
    assert isinstance(result.exception, UsageError)
    assert "P2PCACHE_ORIGIN" in str(result.exception)


def test_through_an_agent(run: Run, agent: FakeAgent) -> None:
    asked: list[dict[str, object]] = []

    def imported(handler: Handler) -> None:
        asked.append(json.loads(handler.body()))
        handler.begin_stream()
        handler.event({"event": "progress", "phase": "import", "bytes_done": 1, "bytes_total": 2})
        handler.event(
            {"event": "done", "ref": "m:v1", "digest": "a" * 64, "bytes": 2, "bytes_read": 2, "files": 1,
             "generation": 1, "seconds": 0.1}
        )  # fmt: skip
        handler.end_stream()

    agent.replies["POST /v1/import"] = imported
    result = run(
        "import", "hf://org/m", "M:v1", "--agent", agent.address, "--include", "*.bin", "--copy"
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"M:v1@blake3:{'a' * 64}\n"
    assert asked == [{
        "url": "hf://org/m", "ref": "M:v1", "include": ["*.bin"], "exclude": [], "copy": True, "force": False,
    }]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[sources]\nurl = "hf://"\n', "[sources.NAME]"),
        ('[sources.hub]\nurl = "hf://"\nprivat = true\n', "did you mean 'private'?"),
        ('[sources.Hub]\nurl = "hf://"\n', "lower-case"),
        ('[sources.hub]\nurl = "hub"\n', "isn't a URL"),
        ("[sources.hub]\nurl = 3\n", "sources.hub"),
    ],
)
def test_settings_that_cannot_be_right(run: Run, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    result = run("config", "check", "--config", tmp_path / "c.toml")
    assert isinstance(result.exception, UsageError)
    assert says in str(result.exception)
    (tmp_path / "c.toml").write_text('[sources.hub]\nurl = "hf://"\n')
    assert run("config", "check", "--config", tmp_path / "c.toml").exit_code == 0
