"""A pushed model is in the cluster: no node reads the origin for it."""

import asyncio
import io
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from loadtest.kit.cluster import free_ports
from p2pcache.agent.app import AgentApp
from p2pcache.agent.jobs import pushes
from p2pcache.agent.uses import begun_pushes
from p2pcache.core.format import manifest as manifests
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import encode
from p2pcache.errors import OverQuota, Unreachable
from p2pcache.ids import Ref
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.origins import Retrying
from p2pcache.io.origins.repo import OriginRepo
from tests.agent.kit import agent, client, events, make_model, pull, push
from tests.certs import Authority
from tests.io.models.store_kit import Model
from tests.tracker.kit import tracker

FILES = {"weights.bin": random.Random(5).randbytes(3_000_000)}


async def push_through(app: AgentApp, layout: Layout, **more: object) -> dict[str, Any]:
    async with client(app) as session:
        async with session.post("/v1/manifests", data=encode(layout.manifest)) as answer:
            missing = (await answer.json())["missing"]
        for item in missing:
            url = f"/v1/blobs/{layout.digest}/{item['blob']}"
            async with session.put(url, data=io.BytesIO(FILES["weights.bin"])) as answer:
                assert answer.status == 200
        body = {"ref": "m", "digest": layout.digest, **more}
        async with session.post("/v1/push", json=body) as answer:
            return (await events(answer))[-1]


async def test_a_prune_between_two_requests_takes_nothing_from_a_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = push_layout(tmp_path)
    (tmp_path / "origin").mkdir()
    async with (
        agent(tmp_path, "a", origin=(tmp_path / "origin").as_uri()) as app,
        client(app) as session,
    ):

        async def prune() -> list[str]:
            async with session.post("/v1/prune", json={"all": True}) as answer:
                removed: list[str] = (await answer.json())["removed"]
                return removed

        async with session.post("/v1/manifests", data=encode(layout.manifest)) as answer:
            assert (await answer.json())["missing"]
        assert await prune() == []
        assert (await push_through(app, layout))["event"] == "done"
        assert len(await prune()) == 1
        async with session.post("/v1/manifests", data=encode(layout.manifest)):
            monkeypatch.setattr(begun_pushes, "SENDING_S", 0.0)  # its client has gone
            assert len(await prune()) == 1


async def test_storage_without_conditional_put_is_written_by_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Retrying, "conditional_put", False)
    layout = push_layout(tmp_path)
    origin = tmp_path / "origin"
    origin.mkdir()
    async with agent(tmp_path, "alone", origin=origin.as_uri()) as app:
        refused = await push_through(app, layout)
        assert (refused["event"], refused["code"]) == ("error", 2)
    async with (
        tracker(origin) as one,
        agent(tmp_path, "b", tracker=f"http://{one.address}", origin=origin.as_uri()) as app,
    ):
        done = await push_through(app, layout)
        assert (done["event"], done["generation"]) == ("done", 1)
        assert (await pull(app, "m"))["event"] == "done"


async def test_the_cluster_knows_a_pushed_model_by_its_name(tmp_path: Path) -> None:
    layout = push_layout(tmp_path)
    (tmp_path / "origin").mkdir()
    async with (
        tracker(tmp_path / "origin") as one,
        agent(tmp_path, "b", tracker=f"http://{one.address}") as app,
    ):
        assert (await push_through(app, layout))["event"] == "done"
        async with client(app) as session, asyncio.timeout(10):
            label = ""
            while label != "m:latest":
                async with session.get("/v1/cluster/models") as answer:
                    label = (await answer.json())["swarms"][0]["label"]


async def test_in_mtls_mode_the_tracker_writes_tags_for_pushers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Retrying, "conditional_put", False)
    layout, authority = push_layout(tmp_path), Authority(tmp_path / "ca")
    origin = tmp_path / "origin"
    origin.mkdir()
    hub = authority.files("hub", "tracker")._asdict()
    async with tracker(origin, **hub) as one:
        url = f"https://{one.address}"
        member = authority.files("n")._asdict()
        async with agent(tmp_path, "a", tracker=url, origin=origin.as_uri(), **member) as app:
            refused = await push_through(app, layout)
            assert (refused["event"], refused["code"]) == ("error", 4)
            assert "--role pusher" in refused["message"]
            assert not list(origin.rglob("blobs/*")), "refused before the upload"
        member = authority.files("n", "pusher")._asdict()
        async with agent(tmp_path, "a", tracker=url, origin=origin.as_uri(), **member) as app:
            assert (await push_through(app, layout))["event"] == "done"


async def test_a_push_before_the_first_contact_names_the_tracker(
    tmp_path: Path,
) -> None:
    layout = push_layout(tmp_path)
    async with agent(tmp_path, "a", tracker=f"http://127.0.0.1:{free_ports(1)[0]}") as app:
        refused = await push_through(app, layout)
    assert refused["code"] == 8
    assert "connection refused" in refused["message"]


def push_layout(tmp_path: Path) -> Layout:
    return Layout(index_directory(make_model(tmp_path / "model", FILES))[0])


async def test_the_first_pull_after_a_push_reads_from_the_pusher(tmp_path: Path) -> None:
    layout = push_layout(tmp_path)
    origin = tmp_path / "origin"
    origin.mkdir()
    async with (
        tracker(origin) as one,
        agent(tmp_path, "a", tracker=f"http://{one.address}") as pusher,
        agent(tmp_path, "b", tracker=f"http://{one.address}") as other,
    ):
        assert (await push_through(pusher, layout))["event"] == "done"
        done = await pull(other, "m")
        assert (done["event"], done["bytes_origin"]) == ("done", 0)


async def test_a_push_that_is_done_is_no_failure_of_a_tracker_that_is_lost_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The tag had moved, the command ended with 8, and the history called the push a failure."""
    caplog.set_level("INFO")
    layout = push_layout(tmp_path)
    (tmp_path / "origin").mkdir()
    async with (
        tracker(tmp_path / "origin") as one,
        agent(tmp_path, "a", tracker=f"http://{one.address}") as app,
    ):
        link = app.context.link
        assert link is not None
        ask = link.ask

        async def lost(what: str, *more: Any, **named: Any) -> Any:
            if what == "moved":
                assert named == {"timeout_s": pushes.MOVED_S}
                raise Unreachable("lost the tracker")
            return await ask(what, *more, **named)

        monkeypatch.setattr(link, "ask", lost)
        done = await push_through(app, layout)
        assert (done["event"], done.get("generation")) == ("done", 1)
        assert "m:latest: the tracker wasn't told that it moved: lost the tracker" in caplog.text


async def test_the_slower_of_two_pushes_takes_no_tag_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's tag went back to the older model, with which pulls without storage then began."""
    origin, ref, inside = tmp_path / "origin", Ref.parse("team/m:v1"), OriginRepo.push
    written, go = threading.Event(), threading.Event()
    old, new = (
        push(
            origin, make_model(tmp_path / name, {"w.bin": name.encode()}), f"team/{name}:v1"
        ).digest
        for name in ("old", "new")
    )

    def slow(self: OriginRepo, layout: Layout, *more: Any, **named: Any) -> Any:
        result = inside(self, layout, *more, **named)
        if layout.digest == old:
            written.set()
            assert go.wait(60)
        return result

    async with agent(tmp_path, "a", origin=origin.as_uri()) as app, asyncio.timeout(60):
        for name in ("old", "new"):
            assert (await pull(app, f"team/{name}:v1"))["event"] == "done"
        monkeypatch.setattr(OriginRepo, "push", slow)
        first = app.pushes.start(ref, old, force=False, repair=False)
        await asyncio.to_thread(written.wait, 60)
        second = app.pushes.start(ref, new, force=False, repair=False)
        assert (await second.ended).generation == 2
        go.set()
        assert (await first.ended).generation == 1
        assert app.context.store.tag_of(ref) == (new, 2)


async def test_a_push_after_storage_was_restored_takes_the_tag_back(tmp_path: Path) -> None:
    layout, origin = push_layout(tmp_path), tmp_path / "origin"
    origin.mkdir()
    async with agent(tmp_path, "a", origin=origin.as_uri()) as app:
        assert (await push_through(app, layout))["generation"] == 1
        app.downloads.swarms[layout.digest].store.publish(Ref.parse("m"), 5)  # what is lost then
        assert (await push_through(app, layout, force=True))["generation"] < 5
        assert app.context.store.tag_of(Ref.parse("m")) != (layout.digest, 5)


async def test_a_repair_uploads_what_the_origin_seems_to_have(tmp_path: Path) -> None:
    layout = push_layout(tmp_path)
    origin = tmp_path / "origin"
    origin.mkdir()
    async with agent(tmp_path, "a", origin=origin.as_uri()) as app:
        assert (await push_through(app, layout))["event"] == "done"
        (blob,) = (origin / "p2pcache/v1/blobs").iterdir()
        blob.write_bytes(bytes(blob.stat().st_size))
        assert (await push_through(app, layout))["bytes_uploaded"] == 0
        done = await push_through(app, layout, repair=True)
        assert done["bytes_uploaded"] == len(FILES["weights.bin"])
        assert app.downloads.busy() == {}, "a push that has ended holds nothing"
        assert blob.read_bytes() == FILES["weights.bin"]


async def test_a_push_that_is_refused_takes_nothing_from_another_of_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes could go while the other one's client still sent them."""
    layout, blob = push_layout(tmp_path), FILES["weights.bin"]
    (tmp_path / "origin").mkdir()
    sent = asyncio.Event()

    async def half_then_rest() -> Any:
        yield blob[: len(blob) // 2]
        await sent.wait()
        yield blob[len(blob) // 2 :]

    async def refuse(_ref: Ref, _digest: str, _size: int) -> None:
        raise OverQuota("the quota of namespace team is used up")

    async with agent(tmp_path, "a", origin=(tmp_path / "origin").as_uri()) as app:
        body = {"ref": "team/m", "digest": layout.digest}
        async with client(app) as session:
            async with session.post("/v1/manifests", data=encode(layout.manifest)) as answer:
                (item,) = (await answer.json())["missing"]
            url = f"/v1/blobs/{layout.digest}/{item['blob']}"
            sending = asyncio.gather(session.put(url, data=half_then_rest()))
            while not app.downloads.pushes._running[layout.digest]:
                await asyncio.sleep(0.01)
            with monkeypatch.context() as patch:
                patch.setattr(app.downloads, "admit", refuse)
                async with session.post("/v1/push", json=body) as answer:
                    assert (await events(answer))[-1]["code"] == 5
            (row,) = await app.journal.rows(9)
            assert (row.action, row.ref, row.code) == ("push", "team/m:latest", 5)
            assert app.downloads.busy(), "the other one is protected"
            sent.set()
            assert (await sending)[0].status == 200
            async with session.post("/v1/push", json=body) as answer:
                assert (await events(answer))[-1]["event"] == "done"
        assert not app.downloads.busy()
        assert not app.downloads.pushes._running


async def test_a_begun_push_gives_its_space_when_nobody_sends(
    tmp_path: Path,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its promise lasted for ever: one client that sends nothing filled the disk of a node."""
    begun = Model({"big": random.Random(1).randbytes(16_000_000)})
    files = {"weights.bin": random.Random(7).randbytes(12_000_000)}
    push(tmp_path / "origin", make_model(tmp_path / "m", files), "team/m:v1")
    origin, cache = (tmp_path / "origin").as_uri(), str(small_disk / "cache")

    async def begin(app: AgentApp) -> int:
        async with (
            client(app) as session,
            session.post("/v1/manifests", data=begun.encoded) as answer,
        ):
            return answer.status

    async with agent(tmp_path, origin=origin, cache_dir=cache) as app:
        assert await begin(app) == 200
        assert (await pull(app, "team/m:v1"))["code"] == 5, "its client may be about to send"
        monkeypatch.setattr(begun_pushes, "SENDING_S", 0.0)
        monkeypatch.setattr(begun_pushes, "BEGUN_S", 0.0)
        assert (await pull(app, "team/m:v1"))["event"] == "done"
        assert begun.digest not in app.downloads.swarms
        look = app.downloads.remove_begun_push

        async def look_long() -> bool:
            await asyncio.sleep(0.02)
            return await look()

        monkeypatch.setattr(app.downloads, "remove_begun_push", look_long)
        assert await begin(app) == 507, "nothing is taken from a model that has a name"
        row = (await app.journal.rows(9))[0]
        assert (row.action, row.digest, row.code) == ("push", begun.digest, 5)
        lines = [r.__dict__["audit"] for r in caplog.records if r.name == "p2pcache.audit"]
        (line,) = [line for line in lines if line["action"] == "push"]
        assert (line["digest"], line["result"], line["code"]) == (begun.digest, "failed", 5)
        assert 0.02 <= row.seconds <= line["seconds"]
    monkeypatch.setattr(begun_pushes, "BEGUN_S", 60.0)
    async with agent(tmp_path, origin=origin, cache_dir=cache) as app:
        async with client(app) as session, session.delete("/v1/model?ref=team/m:v1") as answer:
            assert answer.status == 200
        assert await begin(app) == 200
    async with agent(tmp_path, origin=origin, cache_dir=cache) as app:
        assert (await pull(app, "team/m:v1"))["event"] == "done", "a restart ends all promises"


async def test_manifests_are_checked_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with many manifests doesn't keep another one from its push."""
    go, checked = threading.Event(), list[str]()
    decode = manifests.decode

    def slow(encoded: bytes) -> manifests.Manifest:
        assert go.wait(60)
        found = decode(encoded)
        checked.append(found.files[0].path)
        return found

    monkeypatch.setattr(manifests, "decode", slow)
    async with agent(tmp_path) as app:

        def offer(client: str, name: str) -> Any:
            encoded = Model({name: b"x"}).encoded
            return app.pushes.take_in_turn(client, encoded, lambda _layout: set())

        many = [offer("a", f"a{i}") for i in range(6)]
        work = asyncio.gather(*many, offer("b", "b0"), offer("b", "b1"))
        await asyncio.sleep(0.05)
        go.set()
        await work
    assert checked.index("b0") <= 2
    assert checked.index("b1") <= 4
