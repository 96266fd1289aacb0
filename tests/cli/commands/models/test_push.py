import errno
import json
import os
import shlex
import threading
from pathlib import Path
from typing import Any

import pytest

from p2pcache.cli.support.progress import JsonReporter, LineReporter
from p2pcache.core.format.manifest import decode
from p2pcache.errors import (
    Conflict,
    NoSpace,
    NotFound,
    OriginUnavailable,
    P2PCacheError,
    UsageError,
)
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.origins.push import upload_blobs
from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent, Handler


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a.bin").write_bytes(os.urandom(700_000))
    (folder / "config.json").write_text("{}")
    (folder / "same.json").symlink_to("config.json")
    (folder / "empty").touch()
    return folder


@pytest.fixture
def origin(tmp_path: Path) -> str:
    (tmp_path / "origin").mkdir()
    return f"file://{tmp_path}/origin"


def receiving(agent: FakeAgent, *, status: int = 200, lacking: bool = True) -> dict[str, bytes]:
    """An agent that takes a push; the dict fills with the blobs."""
    blobs: dict[str, bytes] = {}

    def manifests(handler: Handler) -> None:
        manifest = decode(handler.body())
        wanted = {file.blob_id: file.path for file in manifest.files}
        missing = [{"blob": blob, "path": path} for blob, path in wanted.items()] if lacking else []
        handler.answer(200, {"digest": "ignored", "missing": missing})

    def blob(handler: Handler) -> None:
        blobs[handler.path.rpartition("/")[2]] = handler.body()
        handler.answer(
            status, {"bytes": 1} if status == 200 else {"code": 5, "message": "disk full"}
        )

    def pushed(handler: Handler) -> None:
        body = json.loads(handler.body())
        handler.begin_stream()
        handler.event({"event": "progress", "bytes_done": 1, "bytes_total": 2})
        handler.event(
            {
                "event": "done",
                **body,
                "bytes": 700_004,
                "bytes_uploaded": 4,
                "generation": 2,
                "seconds": 0.1,
            }
        )
        handler.end_stream()

    agent.document("GET /v1/status", {})
    agent.replies |= {"POST /v1/manifests": manifests, "PUT *": blob, "POST /v1/push": pushed}
    return blobs


def test_an_unset_variable_does_not_push_the_directory_we_are_in(run: Run) -> None:
    result = run("push", "", "m", "--origin", "file:///nowhere")
    assert isinstance(result.exception, UsageError)
    assert "'.'" in str(result.exception)


@pytest.mark.parametrize(
    "path", ["model", "./model", "model/", "../{}/model", "{}/model", "my model"]
)
def test_a_ref_before_its_directory_is_told(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The ref was told as a directory that isn't there, and a path as no ref."""
    (model.parent / "my model").mkdir()
    monkeypatch.chdir(model.parent)
    path = path.format(model.parent.name if path.startswith("..") else model.parent)
    said = run("push", "team/m:v1", path).exception
    assert isinstance(said, UsageError)
    assert str(said) == f"the directory comes first: p2pcache push {shlex.quote(path)} team/m:v1"


@pytest.mark.parametrize("path", ["./missing", "../missing/", "/missing/model", "./my model"])
def test_a_ref_before_a_directory_that_is_not_there(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The path was told as no ref, with the grammar of refs."""
    monkeypatch.chdir(model.parent)
    said = run("push", "team/m:v1", path).exception
    assert isinstance(said, UsageError)
    assert str(said) == (
        f"the directory comes first: p2pcache push {shlex.quote(path)} team/m:v1 "
        f"(and there is no directory {path} yet)"
    )


def test_a_path_after_a_directory_is_no_ref(run: Run, model: Path) -> None:
    said = run("push", model, "./missing").exception
    assert isinstance(said, UsageError)
    assert "not a model ref: './missing'" in str(said)


def test_a_ref_in_a_directory_that_nobody_may_enter_is_no_mistake(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    """To look for a directory of the ref's name was an unknown error there."""

    look = os.stat

    def stat(path: Any, **how: Any) -> os.stat_result:
        if str(path) == "team/m:v1":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return look(path, **how)

    monkeypatch.setattr(os, "stat", stat)
    assert run("push", model, "team/m:v1", "--origin", origin).exit_code == 0


def test_through_the_agent(agent: FakeAgent, run: Run, model: Path) -> None:
    blobs = receiving(agent)
    result = run("push", model, "team/m:v1", "--agent", agent.address)
    manifest, _ = index_directory(model)
    assert result.stdout.startswith("team/m:v1@blake3:")
    assert "pushed team/m:v1: 700 kB, 4 B of it new" in result.stderr
    assert blobs == {f.blob_id: (model / f.path).read_bytes() for f in manifest.files}
    assert len(blobs) == 3  # two names of one content are one blob


def test_an_agent_that_has_all_blobs_gets_none(agent: FakeAgent, run: Run, model: Path) -> None:
    blobs = receiving(agent, lacking=False)
    assert run("push", model, "m", "--agent", agent.address).exit_code == 0
    assert blobs == {}


def test_the_agent_s_refusal_of_a_blob(agent: FakeAgent, run: Run, model: Path) -> None:
    receiving(agent, status=507)
    result = run("push", model, "m", "--agent", agent.address)
    assert isinstance(result.exception, NoSpace)
    assert "/v1/push" not in [path for _, path, _ in agent.seen]


def test_an_agent_that_asks_for_something_else_gets_nothing(
    agent: FakeAgent, run: Run, model: Path
) -> None:
    receiving(agent)
    agent.document("POST /v1/manifests", {"missing": [{"blob": "../../etc/passwd", "path": "x"}]})
    assert isinstance(run("push", model, "m", "--agent", agent.address).exception, NotFound)


def test_straight_to_storage_and_again(run: Run, model: Path, origin: str, tmp_path: Path) -> None:
    first = run("push", model, "m", "--origin", origin)
    assert first.exit_code == 0, first.exception
    again = run("push", "--json", model, "m", "--origin", origin)
    done = json.loads(again.stdout.splitlines()[-1])
    assert first.stdout == f"m:latest@{done['digest']}\n"
    assert (done["event"], done["bytes_uploaded"], done["generation"]) == ("done", 0, 1)
    assert "nothing to upload" in run("push", model, "m", env={"P2PCACHE_ORIGIN": origin}).stderr
    shown = json.loads(run("show", "m", "--json", "--origin", origin).stdout)
    assert (shown["digest"], shown["local"], shown["files"]) == (done["digest"], False, 4)


def test_a_changed_model_moves_the_tag(run: Run, model: Path, origin: str) -> None:
    run("push", model, "m", "--origin", origin)
    (model / "config.json").write_text('{"a": 1}')
    done = json.loads(run("push", "--json", model, "m", "--origin", origin).stdout.splitlines()[-1])
    assert (done["generation"], done["bytes_uploaded"]) == (2, 8)


def test_somebody_else_moves_the_tag_meanwhile(
    run: Run, model: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("push", model, "m", "--origin", origin)
    (model / "config.json").write_text('{"mine": 1}')
    raced: list[int] = []

    def slow(*args: object, **options: object) -> object:
        if not raced:
            raced.append(1)
            (model / "a.bin").write_bytes(b"theirs")
            assert run("push", model, "m", "--origin", origin).exit_code == 0
            (model / "a.bin").write_bytes(b"ours")
        return upload_blobs(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("p2pcache.io.origins.repo.upload_blobs", slow)
    (model / "a.bin").write_bytes(b"ours")
    assert isinstance(run("push", model, "m", "--origin", origin).exception, Conflict)
    raced.clear()
    (model / "config.json").write_text('{"mine": 2}')
    assert run("push", model, "m", "--origin", origin, "--force").exit_code == 0


@pytest.mark.parametrize("bad", ["no/such/dir", "model/a.bin"])
def test_only_a_directory_with_files_is_pushed(
    run: Run, model: Path, origin: str, tmp_path: Path, bad: str
) -> None:
    result = run("push", tmp_path / bad, "m", "--origin", origin)
    assert isinstance(result.exception, P2PCacheError)
    assert result.exception.exit_code in (2, 3)


def test_other_kinds_of_file_are_refused_by_name(run: Run, model: Path, origin: str) -> None:
    os.mkfifo(model / "pipe")
    result = run("push", model, "m", "--origin", origin)
    assert isinstance(result.exception, UsageError)
    assert "pipe is a named pipe" in str(result.exception)


def test_a_part_of_a_model_is_warned_of_or_refused(run: Run, model: Path, origin: str) -> None:
    for number in range(1, 20):
        (model / f"m{number}.incomplete").write_text("x")
    result = run("push", model, "team/m:v1", "--origin", origin)
    assert result.exit_code == 0
    assert result.stderr.count("warning: m1") == 10
    assert "warning: 9 more such signs" in result.stderr
    said = run("push", "--json", model, "team/m:v1", "--origin", origin).stdout.splitlines()
    assert json.loads(said[0])["event"] == "warning"
    error = run("push", "--strict", model, "team/m:v2", "--origin", origin).exception
    assert isinstance(error, UsageError)
    assert str(error).startswith("m1.incomplete is a part of a download")
    assert "(18 more such signs)" in str(error)
    assert not list(Path(origin.removeprefix("file://")).glob("**/v2"))


def test_a_push_needs_an_agent_or_a_storage(run: Run, model: Path) -> None:
    result = run("push", model, "m")
    assert isinstance(result.exception, UsageError)
    assert "P2PCACHE_ORIGIN" in str(result.exception)


def test_a_push_gives_the_digest_it_does_not_take_one(run: Run, model: Path) -> None:
    assert isinstance(run("push", model, f"m@blake3:{'ab' * 32}").exception, UsageError)


def test_ten_thousand_files_are_not_ten_thousand_events(
    run: Run, tmp_path: Path, origin: str
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(300):
        (folder / f"{i}").write_text(str(i))
    result = run("push", "--json", folder, "many", "--origin", origin)
    assert len(result.stdout.splitlines()) < 30


@pytest.mark.parametrize("as_json", [False, True])
def test_a_push_says_that_it_waits_for_storage(
    run: Run, model: Path, origin: str, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    told = threading.Event()

    def silent(*_: object) -> None:
        told.wait(60)
        raise OriginUnavailable("nobody answers")

    update = JsonReporter.update if as_json else LineReporter.update

    def heard(reporter: Any, event: dict[str, Any]) -> None:
        update(reporter, event)
        if event["event"] == "waiting":
            told.set()

    monkeypatch.setattr(JsonReporter if as_json else LineReporter, "update", heard)
    monkeypatch.setattr("p2pcache.io.origins.repo.OriginRepo.get_tag", silent)
    monkeypatch.setattr("p2pcache.cli.commands.models.push.WAITING_S", 0.1)
    flags = ["--json"] if as_json else []
    result = run("push", model, "team/m:v1", "--origin", origin, *flags)
    assert isinstance(result.exception, OriginUnavailable)
    if as_json:
        first = json.loads(result.stdout.splitlines()[0])
        assert (first["event"], first["for"]) == ("waiting", f"storage {origin}")
        assert first["seconds"] >= 0.1
    else:
        assert f"pushing team/m:v1: waiting for storage {origin} to answer (" in result.stderr


def test_wrong_bytes_in_storage_are_repaired(
    run: Run, model: Path, origin: str, tmp_path: Path
) -> None:
    assert run("push", model, "m", "--origin", origin).exit_code == 0
    stored = [p for p in (tmp_path / "origin").rglob("*") if p.is_file() and "tags" not in p.parts]
    right = {path: path.read_bytes() for path in stored}
    for path in stored:  # rot: name and size stay
        path.write_bytes(bytes(len(right[path])))
    usual = run("push", model, "m", "--origin", origin)
    assert "nothing to upload" in usual.stderr  # nobody reads 700 GB to find out
    repaired = run("push", "--repair", model, "m", "--origin", origin)
    assert "700 kB of it new" in repaired.stderr, repaired.exception
    assert {path: path.read_bytes() for path in stored} == right


def test_a_repair_through_the_agent(agent: FakeAgent, run: Run, model: Path) -> None:
    receiving(agent)
    usual = run("push", "--json", model, "m", "--agent", agent.address).stdout.splitlines()[-1]
    assert "repair" not in json.loads(usual)  # an agent of the release before refuses the word
    repair = run("push", "--json", "--repair", model, "m", "--agent", agent.address)
    assert json.loads(repair.stdout.splitlines()[-1])["repair"] is True
