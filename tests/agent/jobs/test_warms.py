"""Warms of one agent: all pulls go first; how a warm ends."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.downloads.download import Download
from p2pcache.agent.jobs import warms
from p2pcache.core import backoff
from p2pcache.core.protocol.tokens import Scope
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import OriginUnavailable, TimedOut
from p2pcache.ids import Ref
from p2pcache.io.notes.pending_warms import PendingWarms
from p2pcache.io.origins.repo import OriginRepo
from tests.agent.api.rights_kit import ask, guarded, over_tcp, token
from tests.agent.jobs.warm_kit import REF, get, model, refs, running, until, warm
from tests.agent.kit import HeldReads, agent, client, pull, push


async def test_a_warm_ends_without_a_client(tmp_path: Path) -> None:
    digest = model(tmp_path)
    origin = (tmp_path / "origin").as_uri()
    async with agent(tmp_path, origin=origin, abandon_after_s=0.1) as app:
        began = await warm(app)
        assert began == {"ref": REF, "digest": digest, "bytes": 3_000_000, "state": "started"}
        await until(lambda: not app.warms._running)
        assert await refs(app) == [REF]
        assert (await warm(app))["state"] == "had"
        (row,) = (await get(app, "/v1/history"))["history"]
        assert (row["action"], row["ref"], row["code"]) == ("warm", REF, 0)
        assert (await get(app, f"/v1/explain?ref={REF}"))["last"]["action"] == "warm"
        assert 'p2pcache_agent_warms_total{exit_code="0"} 1.0' in app.queries.metrics()[0].decode()


async def test_a_warm_of_a_present_model_sets_the_new_tag(tmp_path: Path) -> None:
    model(tmp_path)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        assert (await pull(app, REF))["event"] == "done"
        push(tmp_path / "origin", tmp_path / "m", "team/other:v1")
        assert (await warm(app, "team/other:v1"))["state"] == "had"
        (known,) = (await get(app, "/v1/models"))["models"]
        assert set(known["refs"]) == {REF, "team/other:v1"}


async def test_a_warm_yields_to_pulls_and_the_background_yields_to_a_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        model(tmp_path, name, 2_000_000)
    for name in ("m", "least"):
        model(tmp_path, name, 16_000_000)  # far more than what is read at the same time
    reads, ended = HeldReads(monkeypatch), list[str]()

    def follow(name: str) -> Download:
        download = running(app, name)
        download.ended.add_done_callback(lambda _: ended.append(name))
        return download

    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        assert (await warm(app))["state"] == "started"
        least = asyncio.gather(pull(app, "team/least:v1", background=True))
        await until(lambda: len(app.downloads.running) == 2)
        mine, last = follow("m"), follow("least")
        await until(lambda: last.swarm.scheduler is not None and not last.swarm.scheduler.wanted)
        assert mine.swarm.scheduler is None or mine.swarm.scheduler.wanted
        pulls = asyncio.gather(pull(app, "team/one:v1"), pull(app, "team/two:v1"))
        await until(lambda: len(app.downloads.running) == 4)
        follow("one"), follow("two")
        await until(lambda: mine.swarm.scheduler is not None and not mine.swarm.scheduler.wanted)
        kinds = {row["ref"]: row["kind"] for row in (await get(app, "/v1/pulls"))["pulls"]}
        assert kinds == {
            "team/m:v1": "warm", "team/one:v1": "pull", "team/two:v1": "pull",
            "team/least:v1": "background",
        }  # fmt: skip
        assert app.net._priorities[mine.swarm.digest] is Priority.WARM
        reads.let_go.set()
        await asyncio.gather(pulls, least)
    assert set(ended[:2]) == {"one", "two"}
    assert ended[2:] == ["m", "least"]


async def test_a_pull_joins_a_warm_and_raises_its_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(tmp_path)
    reads = HeldReads(monkeypatch)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await warm(app)
        assert (await warm(app))["state"] == "getting"
        download = running(app, "m")
        assert download.clients == 1, "twice is once"
        behind = asyncio.gather(pull(app, REF, background=True))  # as `warm --wait` does
        await until(lambda: download.clients == 2)
        assert download.kind == "warm"
        now = asyncio.gather(pull(app, REF))
        await until(lambda: download.kind == "pull")
        assert download.swarm.digest not in app.net._priorities
        reads.let_go.set()
        assert [last["event"] for (last,) in await asyncio.gather(behind, now)] == ["done"] * 2


async def test_a_warm_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    model(tmp_path)
    origin = (tmp_path / "origin").as_uri()
    async with agent(tmp_path, origin=origin, min_free_bytes=1 << 60) as app:
        refused = await warm(app)
        assert refused["code"] == 5
        assert "3.00 MB needed" in refused["message"]
        assert (await warm(app, "team/absent:v1"))["code"] == 3
        assert (await warm(app, replicas=2))["code"] == 8
        assert (await warm(app, replicas=-1))["code"] == 2
        assert not app.downloads.running
        assert {row["action"] for row in (await get(app, "/v1/history"))["history"]} == {"warm"}


async def test_a_removal_stops_a_warm_without_other_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(tmp_path)
    reads = HeldReads(monkeypatch)

    async def remove(ref: str) -> Any:
        async with client(app) as session, session.delete(f"/v1/model?ref={ref}") as answer:
            return await answer.json()

    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await warm(app)
        waiting = asyncio.gather(pull(app, REF))
        await until(lambda: running(app, "m").clients == 2)
        assert (await remove(REF))["code"] == 10
        waiting.cancel()
        await until(lambda: running(app, "m").clients == 1)
        assert (await remove(REF))["removed"] == REF
        assert not app.downloads.running
        await until(lambda: not app.warms._running)
        assert (await get(app, "/v1/models"))["models"] == []
        rows = (await get(app, "/v1/history"))["history"]
        assert [row["message"] for row in rows if row["action"] in ("pull", "warm")] == [
            f"{REF} was removed while it was warmed"
        ]
        reads.let_go.set()


async def test_a_warm_gives_its_disk_space_to_a_pull(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a pod that waits would not start because of a model that nobody waits for."""
    for name, size in (
        ("old", 3_000_000),
        ("one", 5_000_000),
        ("two", 5_000_000),
        ("big", 12_000_000),
    ):
        model(tmp_path, name, size)
    origin, cache = (tmp_path / "origin").as_uri(), str(small_disk / "cache")
    async with agent(tmp_path, origin=origin, cache_dir=cache) as app:
        assert (await pull(app, "team/old:v1"))["event"] == "done"
        reads = HeldReads(monkeypatch)
        assert [(await warm(app, f"team/{name}:v1"))["state"] for name in ("one", "two")] == [
            "started"
        ] * 2
        assert (await warm(app, "team/big:v1"))["code"] == 5, "a warm takes nothing from a warm"
        waiting = asyncio.gather(pull(app, "team/two:v1", background=True))  # as `warm --wait` does
        await until(lambda: running(app, "two").clients == 2)
        mine = asyncio.gather(pull(app, "team/big:v1"))
        await until(lambda: any(d.ref.name == "big" for d in app.downloads.running.values()))
        (told,) = await waiting
        assert told["code"] == 5
        assert told["message"] == (
            "team/two:v1 gave its disk space to a pull that somebody awaits; make room (p2pcache prune) and ask again"
        )
        reads.let_go.set()
        assert (await mine)[0]["event"] == "done"
        await until(lambda: not app.warms._running)
        assert set(await refs(app)) == {"team/old:v1", "team/one:v1", "team/big:v1"}
        assert (await warm(app, "team/two:v1"))["code"] == 5


async def test_a_warm_goes_on_after_a_restart_unless_it_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("m", "one"):
        model(tmp_path, name)
    origin = (tmp_path / "origin").as_uri()
    reads = HeldReads(monkeypatch)
    refs_ = [f"team/{name}:v1" for name in ("m", "one")]
    async with agent(tmp_path, origin=origin) as app:
        for ref in refs_:
            assert (await warm(app, ref))["state"] == "started"
        await until(lambda: len(app.warms._book.refs()) == 2)
        reads.lost = True
        reads.let_go.set()
    reads.lost = False
    async with agent(tmp_path) as app:  # it doesn't know of any origin yet
        assert PendingWarms(tmp_path / "a" / warms.FILE).refs() == [Ref.parse(ref) for ref in refs_]
        async with client(app) as session, session.delete(f"/v1/model?ref={refs_[1]}") as answer:
            assert answer.status == 200
    async with agent(tmp_path, origin=origin) as app:
        app.warms.resume()
        await until(
            lambda: not app.warms._running and not PendingWarms(tmp_path / "a" / warms.FILE).refs()
        )
        assert refs_[0] in await refs(app)
        assert refs_[1] not in await refs(app)


async def test_a_resumed_warm_waits_for_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warms, "AGAIN_S", 0.02)
    model(tmp_path)
    (tmp_path / "a").mkdir()
    book = PendingWarms(tmp_path / "a" / warms.FILE)
    for ref in (REF, "team/absent:v1"):
        book.remember(Ref.parse(ref))
    async with agent(tmp_path) as app:
        app.warms.resume()
        await asyncio.sleep(0.1)
        assert len(PendingWarms(tmp_path / "a" / warms.FILE).refs()) == 2
        await app._opener.use((tmp_path / "origin").as_uri())
        await until(lambda: not PendingWarms(tmp_path / "a" / warms.FILE).refs())
        assert await refs(app) == [REF]


async def test_an_outage_of_storage_ends_no_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was forgotten where storage failed during the warm, or at the start after it."""
    monkeypatch.setattr(warms, "AGAIN_S", 0.02)
    model(tmp_path)
    origin, book = (tmp_path / "origin").as_uri(), tmp_path / "a" / warms.FILE
    away, asked, get_tag = OriginUnavailable("503 SlowDown"), list[Ref](), OriginRepo.get_tag

    def busy(_: OriginRepo, ref: Ref) -> Any:
        asked.append(ref)
        raise away

    reads = HeldReads(monkeypatch)
    async with agent(tmp_path, origin=origin) as app:
        await warm(app)
        await until(app.warms._book.refs)
        monkeypatch.setattr(OriginRepo, "get_tag", busy)
        running(app, "m").fail(away)
        await until(lambda: len(asked) > 1)
        assert PendingWarms(book).refs() == [Ref.parse(REF)]
        reads.let_go.set()
    asked.clear()
    async with agent(tmp_path, origin=origin) as app:
        app.warms.resume()
        await until(lambda: len(asked) > 1)
        assert PendingWarms(book).refs() == [Ref.parse(REF)]
        monkeypatch.setattr(OriginRepo, "get_tag", get_tag)
        await until(lambda: not PendingWarms(book).refs())
        assert await refs(app) == [REF]


async def test_a_warm_that_waits_for_an_outage_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one took it; then the first was refused and forgotten."""
    monkeypatch.setattr(warms, "AGAIN_S", 0.3)
    monkeypatch.setattr(warms, "MAX_WARMS", 1)
    for name in ("m", "one"):
        model(tmp_path, name)
    reads = HeldReads(monkeypatch)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await warm(app)
        await until(app.warms._book.refs)
        running(app, "m").fail(TimedOut("the disk hangs"))
        await until(lambda: app.warms._waiting)
        assert (await warm(app, "team/one:v1"))["code"] == 10
        assert (await warm(app))["state"] == "started", "it may be asked for again"
        running(app, "m").fail(OriginUnavailable("503 SlowDown"))
        reads.let_go.set()
        await until(lambda: not app.warms._book.refs())
        assert await refs(app) == [REF]
        assert (await warm(app, "team/one:v1"))["state"] == "started"


async def test_the_tries_of_a_warm_become_rare_and_their_place_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(tmp_path)
    pauses, pause_s = list[float](), backoff.pause_s

    def noted(first_s: float, most_s: float, failures: int) -> float:
        pauses.append(pause_s(first_s, most_s, failures))
        return 0.01 if len(pauses) < 7 else 60

    async with agent(tmp_path) as app:  # it has no storage
        app.warms._book.remember(Ref.parse(REF))
        monkeypatch.setattr(backoff, "pause_s", noted)
        app.warms.resume()
        await until(lambda: len(pauses) == 7)
        assert pauses == [15, 30, 60, 120, 240, 300, 300]
        await until(lambda: app.warms._waiting)
        await app.warms.forget_pending(Ref.parse(REF))
        assert not app.warms._waiting


async def test_a_client_that_leaves_while_the_disk_is_slow_leaves_a_warm_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(tmp_path)
    inside, go = PendingWarms.remember, threading.Event()

    def slow(self: PendingWarms, ref: Ref) -> None:
        go.wait(60)
        inside(self, ref)

    monkeypatch.setattr(PendingWarms, "remember", slow)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        asking = asyncio.gather(app.warms.start(Ref.parse(REF)))
        await until(lambda: app.warms._running)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        go.set()
        await until(lambda: not app.warms._running)
        assert await refs(app) == [REF]
        assert app.warms._book.refs() == []


def test_a_bad_book_of_warms_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / warms.FILE
    for text in ("", "{", '{"format": 1, "warms": 7}', '{"format": 9, "warms": ["a/b:c"]}',
                 '{"format": 1, "warms": ["..", "a/b:c:d"]}'):  # fmt: skip
        path.write_text(text)
        assert PendingWarms(path).refs() == []


async def test_the_number_of_warms_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warms, "MAX_WARMS", 1)
    reads = HeldReads(monkeypatch)
    for name in ("m", "one"):
        model(tmp_path, name)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await warm(app)
        assert (await warm(app, "team/one:v1"))["code"] == 10
        reads.let_go.set()


async def test_only_admins_may_warm(tmp_path: Path) -> None:
    model(tmp_path)
    async with guarded(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        for scope, space, status in (
            (Scope.PULL, "team", 403), (Scope.PUSH, "team", 403), (Scope.ADMIN, "other", 403),
            (Scope.ADMIN, "team", 200),
        ):  # fmt: skip
            async with over_tcp(app, token(scope, space)) as session:
                assert (await ask(session, "POST", "/v1/warm", json={"ref": REF}))[0] == status


async def test_a_removal_of_one_name_leaves_anothers_warm_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two namespaces have the same bytes; neither sees the other's names, or ends what the other began."""
    model(tmp_path)
    push(tmp_path / "origin", tmp_path / "m", "other/m:v1")
    reads = HeldReads(monkeypatch)
    async with guarded(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        mine, theirs = token(Scope.ADMIN, "team"), token(Scope.ADMIN, "other")
        async with over_tcp(app, mine) as us, over_tcp(app, theirs) as them:
            for session, ref in ((us, REF), (them, "other/m:v1")):
                assert (await ask(session, "POST", "/v1/warm", json={"ref": ref}))[0] == 200
            await until(lambda: running(app, "m").clients == 2)
            for session, ref in ((us, REF), (them, "other/m:v1")):
                (row,) = (await ask(session, "GET", "/v1/pulls"))[1]["pulls"]
                assert row["ref"] == ref
            assert (await ask(us, "DELETE", f"/v1/model?ref={REF}"))[0] == 200
            assert (await ask(us, "DELETE", f"/v1/model?ref={REF}"))[0] == 404
            assert (await ask(us, "GET", "/v1/pulls"))[1] == {"pulls": []}
            assert running(app, "m").clients == 1
            reads.let_go.set()
            await until(lambda: not app.warms._running)
            _, history = await ask(them, "GET", "/v1/history")
            assert [(row["ref"], row["code"]) for row in history["history"]] == [("other/m:v1", 0)]
            (known,) = (await ask(them, "GET", "/v1/models"))[1]["models"]
            assert (known["refs"], known["complete"]) == (["other/m:v1"], True)
            assert (await ask(us, "GET", "/v1/models"))[1] == {"models": []}
