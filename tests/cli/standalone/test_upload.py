"""The two targets of a push: what is sent where, and what people are told of an interruption."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from p2pcache.cli.standalone.upload import AgentPush, DirectPush
from p2pcache.cli.support.progress import Event, QuietReporter
from p2pcache.core.format.manifest import decode
from p2pcache.errors import Conflict, NotFound, OriginUnavailable, P2PCacheError, UsageError
from p2pcache.ids import Ref
from p2pcache.io.files.push_upload import Indexed, indexed
from p2pcache.io.http.client import AgentClient
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo, PushResult
from tests.cli.fake_agent import FakeAgent, Handler

REF = Ref.parse("team/m:v1")


class Reporter(QuietReporter):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def update(self, event: Event) -> None:
        self.events.append(event)


@pytest.fixture
def model(tmp_path: Path) -> Indexed:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(os.urandom(700_000))
    (folder / "config.json").write_text("{}")
    return indexed(folder)


@pytest.fixture
def storage(tmp_path: Path) -> str:
    (tmp_path / "origin").mkdir()
    return f"file://{tmp_path}/origin"


def push_to(
    target: AgentPush | DirectPush, model: Indexed, *, force: bool = False, repair: bool = False
) -> tuple[Event, list[Event]]:
    reporter = Reporter()
    done = target.push(REF, model, reporter, spelling="team/m", force=force, repair=repair)
    return done, reporter.events


# -- the storage itself ---------------------------------------------------------------------------


def test_storage_gets_the_blobs_and_then_the_tag(model: Indexed, storage: str) -> None:
    target = DirectPush(storage)
    target.check(REF)  # a new tag is no trouble
    done, events = push_to(target, model)
    repo = OriginRepo(open_origin(storage))
    assert repo.get_tag(REF).digest == model.layout.digest == done["digest"]
    assert decode(repo.get_manifest(model.layout.digest)) == model.layout.manifest
    assert (done["bytes_uploaded"], done["bytes"], done["generation"]) == (700_002, 700_002, 1)
    assert all(one["phase"] == "upload" and one["bytes_total"] == 700_002 for one in events)


def test_storage_that_has_the_blobs_gets_them_only_for_a_repair(
    model: Indexed, storage: str
) -> None:
    push_to(DirectPush(storage), model)
    again, _ = push_to(DirectPush(storage), model)
    assert again["bytes_uploaded"] == 0
    repaired, _ = push_to(DirectPush(storage), model, repair=True)
    assert repaired["bytes_uploaded"] == 700_002


def test_a_file_that_is_gone_is_named(model: Indexed, storage: str) -> None:
    model.sources["weights.bin"].unlink()
    with pytest.raises(P2PCacheError, match=r"weights\.bin"):
        push_to(DirectPush(storage), model)


def test_a_push_needs_a_storage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere to push to"):
        DirectPush("")
    with pytest.raises(NotFound):
        DirectPush(f"file://{tmp_path}/nowhere").check(REF)


def test_what_storage_says_of_its_trouble(
    model: Indexed, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = DirectPush(storage)
    assert (target.place, target.trouble) == (f"storage {storage}", "")
    monkeypatch.setattr(OriginRepo, "trouble", OriginUnavailable("503 from storage"))
    monkeypatch.setattr("p2pcache.cli.support.background.PROGRESS_EVERY_S", 0.01)
    told, push = threading.Event(), OriginRepo.push

    def slow(*args: Any, **more: Any) -> PushResult:
        assert told.wait(60)
        return push(*args, **more)

    class Telling(Reporter):
        def update(self, event: Event) -> None:
            super().update(event)
            told.set()

    monkeypatch.setattr(OriginRepo, "push", slow)
    reporter = Telling()
    target.push(REF, model, reporter, spelling="team/m", force=False, repair=False)
    assert target.trouble == "503 from storage"
    assert all(one["trouble"] == "503 from storage" for one in reporter.events)


# -- an agent -------------------------------------------------------------------------------------


def serve(agent: FakeAgent, model: Indexed, pushed: list[dict[str, Any]]) -> dict[str, bytes]:
    """An agent whose cache lacks the weights; returns the blobs that it is sent."""
    blobs: dict[str, bytes] = {}
    layout = model.layout
    lacks = layout.blobs[layout.blob_of_file["weights.bin"]].id

    def blob(handler: Handler) -> None:
        blobs[handler.path.rpartition("/")[2]] = handler.body()
        handler.answer(200, {"bytes": 1})

    agent.document("POST /v1/manifests", {"missing": [{"blob": lacks, "path": "weights.bin"}]})
    agent.replies["PUT *"] = blob
    agent.stream("POST /v1/push", pushed)
    return blobs


DONE = {"event": "done", "ref": "team/m:v1", "bytes_uploaded": 3, "generation": 7}


def test_an_agent_gets_what_it_lacks_and_then_uploads(agent: FakeAgent, model: Indexed) -> None:
    blobs = serve(agent, model, [{"event": "progress", "bytes_done": 1}, DONE])
    done, events = push_to(AgentPush(AgentClient(agent.address)), model)
    assert done == DONE
    assert list(blobs.values()) == [model.sources["weights.bin"].read_bytes()]
    assert events[-1] == {"event": "progress", "bytes_done": 1, "phase": "upload"}
    assert all(one["bytes_total"] == 700_000 for one in events if one["phase"] == "send")
    (asked,) = [json.loads(body) for body in agent.bodies[1:]]
    assert (asked["ref"], asked["digest"], asked["force"]) == (
        REF.short,
        model.layout.digest,
        False,
    )
    assert "repair" not in asked, "an agent of the release before refuses the word"


def test_force_and_repair_are_passed_on(agent: FakeAgent, model: Indexed) -> None:
    serve(agent, model, [DONE])
    push_to(AgentPush(AgentClient(agent.address)), model, force=True, repair=True)
    asked = json.loads(agent.bodies[1])
    assert (asked["force"], asked["repair"]) == (True, True)


def test_what_goes_on_depends_on_who_has_the_model(agent: FakeAgent, model: Indexed) -> None:
    target = AgentPush(AgentClient(agent.address))
    assert agent.address in target.place
    serve(agent, model, [DONE])
    agent.document("PUT *", {"code": 5, "message": "disk full"}, status=507)
    with pytest.raises(P2PCacheError, match="disk full"):
        push_to(target, model)
    assert "no tag was moved" in target.goes_on
    serve(agent, model, [{"event": "error", "code": Conflict.exit_code, "message": "moved"}])
    with pytest.raises(Conflict, match="moved"):
        push_to(target, model)
    assert "goes on with the upload" in target.goes_on


def test_an_agent_that_ends_without_a_last_word(agent: FakeAgent, model: Indexed) -> None:
    serve(agent, model, [{"event": "progress", "bytes_done": 1}])
    with pytest.raises(P2PCacheError):
        push_to(AgentPush(AgentClient(agent.address)), model)
