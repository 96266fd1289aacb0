"""Slow storage: waiting clients see what they wait for."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.downloads import resolver
from p2pcache.agent.jobs import events as job_events
from p2pcache.agent.tracker_link import TrackerLink
from p2pcache.errors import OriginUnavailable
from p2pcache.ids import Ref
from p2pcache.io.origins.repo import OriginRepo
from tests.agent.kit import agent, client, events, make_model, push


async def test_a_waiting_client_sees_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "model", {"a": b"1"}), "team/m:v1")
    quick, answers = OriginRepo.get_tag, threading.Event()

    def slow(repo: OriginRepo, ref: Ref) -> Any:
        answers.wait(60)
        return quick(repo, ref)

    monkeypatch.setattr(OriginRepo, "get_tag", slow)
    monkeypatch.setattr(job_events, "WAITING_S", 0.15)
    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        async with session.post("/v1/pull", json={"ref": "team/m:v1"}) as answer:
            told = [json.loads(await answer.content.readline()) for _ in range(2)]
            answers.set()
            told += await events(answer)
        kinds = [event["event"] for event in told]
        assert kinds[:2] == ["waiting", "waiting"]
        assert kinds[-1] == "done"
        assert told[0]["for"] == f"storage {origin.as_uri()}"
        assert told[0]["seconds"] >= 0.1
        # An error after that is the last event of the stream.
        answers.clear()
        async with session.post("/v1/pull", json={"ref": "team/none:v1"}) as answer:
            assert answer.status == 200
            answers.set()
            told = await events(answer)
        assert (told[-1]["event"], told[-1]["code"]) == ("error", 3)


async def test_a_client_that_leaves_while_it_waits_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "model", {"a": b"1"}), "team/m:v1")
    answers, answered = threading.Event(), threading.Event()

    def slow(*_: Any) -> Any:
        answers.wait(60)
        answered.set()
        raise OriginUnavailable("nobody is left to be told")

    monkeypatch.setattr(OriginRepo, "get_tag", slow)
    monkeypatch.setattr(job_events, "WAITING_S", 0.1)
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        async with client(app) as session, session.post(
            "/v1/pull", json={"ref": "team/m:v1"}
        ) as answer:  # fmt: skip
            await answer.content.readline()
        answers.set()
        assert await asyncio.to_thread(answered.wait, 30)
        async with client(app) as session, session.get("/v1/status") as answer:
            assert answer.status == 200
    assert "Traceback" not in caplog.text
    assert "ERROR" not in caplog.text


async def test_a_client_that_waits_for_the_first_contact_is_told_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resolver that hangs gives the tracker's address late; the storage isn't what is waited for."""

    async def never(_link: TrackerLink) -> None:
        await asyncio.Event().wait()

    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "model", {"a": b"1"}), "team/m:v1")
    monkeypatch.setattr(TrackerLink, "run", never)
    monkeypatch.setattr(job_events, "WAITING_S", 0.15)
    monkeypatch.setattr(resolver, "FIRST_CONTACT_S", 0.6)
    url = "http://tracker.invalid:7400"
    async with agent(tmp_path, origin=origin.as_uri(), tracker=url) as app, client(app) as session:
        async with session.post("/v1/pull", json={"ref": "team/m:v1"}) as answer:
            told = json.loads(await answer.content.readline())
    assert (told["event"], told["for"]) == ("waiting", f"tracker {url}")
