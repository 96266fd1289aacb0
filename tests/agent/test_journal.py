"""The history of a real agent: rows for people and counters for Prometheus."""

import asyncio
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from p2pcache.agent.app import AgentApp
from p2pcache.agent.journal import Journal
from p2pcache.core.protocol.messages import MAX_ENDED
from p2pcache.errors import NoSpace
from p2pcache.io.disk.agent_db import HistoryRow
from p2pcache.io.models.store import Store
from p2pcache.io.tasks import Tasks
from tests.agent.kit import agent, client, make_model, pull, push


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    model = make_model(tmp_path / "model", {"weights.bin": bytes(range(256)) * 2000})
    push(tmp_path / "origin", model, "team/one:v1")
    return tmp_path / "origin"


async def history(app: AgentApp, query: str = "", path: str = "") -> list[dict[str, Any]]:
    async with client(app, path=path) as session, session.get(f"/v1/history{query}") as answer:
        assert answer.status == 200, await answer.text()
        rows: list[dict[str, Any]] = (await answer.json())["history"]
        return rows


async def samples(app: AgentApp) -> dict[tuple[str, str], float]:
    """Values by (name, labels as text)."""
    async with client(app) as session, session.get("/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
        return {
            (s.name.removeprefix("p2pcache_agent_"), ",".join(s.labels.values())): s.value
            for family in families for s in family.samples
        }  # fmt: skip


async def test_history_is_newest_first_and_survives_a_restart(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        done = await pull(app, "team/one:v1")
        assert (await pull(app, "team/one:v1"))["event"] == "done"  # warm: nothing was done
        assert (await pull(app, "team/none:v1"))["code"] == 3
        assert (await pull(app, "team/none:v1"))["code"] == 3
        async with client(app) as session, session.delete("/v1/model?ref=team/one:v1") as answer:
            assert answer.status == 200
        rows = await history(app)
        assert [(r["action"], r["code"], r["times"]) for r in rows] == [
            ("rm", 0, 1), ("pull", 3, 2), ("pull", 0, 1),
        ]  # fmt: skip
        first = rows[-1]
        assert (first["ref"], first["digest"]) == ("team/one:v1", done["digest"])
        assert first["bytes_origin"] == first["bytes"] == 512_000
        assert first["rate"] > 0
        assert "team/none:v1" in rows[1]["message"]
        assert await history(app, "?limit=1") == rows[:1]
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        assert await history(app) == rows


async def test_a_bad_limit_is_refused(tmp_path: Path) -> None:
    async with agent(tmp_path) as app, client(app) as session:
        for bad in ("-1", "x", "", "9" * 50):
            async with session.get(f"/v1/history?limit={bad}") as answer:
                assert answer.status == 400


async def test_a_limited_caller_sees_the_history_of_its_namespace_only(
    tmp_path: Path, origin: Path
) -> None:
    settings = {"client_socket": str(tmp_path / "c.sock"), "client_namespaces": "other"}
    async with agent(tmp_path, origin=origin.as_uri(), **settings) as app:
        await pull(app, "team/one:v1")
        assert len(await history(app)) == 1
        assert await history(app, path=settings["client_socket"]) == []


async def test_counters_of_ended_actions(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        before = await samples(app)
        assert before["pulls_total", "0"] == before["pulls_total", "7"] == 0
        await pull(app, "team/one:v1")
        await pull(app, "team/one:v1")
        await pull(app, "team/none:v1")
        after = await samples(app)
        assert (after["pulls_total", "0"], after["pulls_total", "3"]) == (1, 1)
        assert after["pull_hits_total", ""] == 1
        assert after["pull_duration_seconds_count", ""] == 1
        assert after["received_bytes_total", "origin"] == after["pulled_bytes_total", ""] == 512_000
        async with client(app) as session, session.delete("/v1/model?ref=team/one:v1"):
            pass
        gone = await samples(app)
        assert gone["received_bytes_total", "origin"] == 512_000  # a counter never goes back
        assert gone["removals_total", "0"] == 1


async def test_the_tracker_is_told_of_ended_pulls_once(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        done = await pull(app, "team/one:v1")
        await pull(app, "team/none:v1")  # what its caller misspelt may be no model's name
        [told] = app.heartbeat().ended
        digest = str(done["digest"]).removeprefix("blake3:")
        assert (told.digest, told.label, told.code) == (digest, "team/one:v1", 0)
        assert (told.total_bytes, told.taken) == (512_000, (0, 512_000, 0))
        assert app.heartbeat().ended == ()
        with pytest.raises(NoSpace), app.journal.failures("pull", "team/secret:v1"):
            raise NoSpace("no space on /a/path of /this/host")
        [failed] = app.heartbeat().ended
        assert (failed.code, failed.label, failed.digest) == (NoSpace.exit_code, "", "")
        for _ in range(3 * MAX_ENDED):
            app.journal.record("pull", ref="a:b", digest="ab" * 32)
        app.journal.record("push", ref="a:b", digest="ab" * 32)
        assert len(app.heartbeat().ended) == MAX_ENDED


async def test_a_full_disk_ends_no_daemon_and_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "cache")
    async with Tasks() as tasks:
        journal = Journal(store, tasks)
        with monkeypatch.context() as full:

            def refuse(*_: object) -> None:
                raise NoSpace("disk full")

            full.setattr(store, "add_history", refuse)
            journal.record("pull", ref="a:b")
            await asyncio.sleep(0.05)
            journal.record("pull", ref="c:d")
            assert [row.ref for row in await journal.rows(9)] == ["c:d", "a:b"]
            assert [row.ref for row in await journal.rows(1)] == ["c:d"]
            journal._waiting.rows.pop()
        assert [row.ref for row in await journal.rows(9)] == ["a:b"]
    journal.record("pull", ref="c:d")  # too late for a task: written by close
    journal.close()
    assert [row.ref for row in store.history(9)] == ["c:d", "a:b"]
    store.close()


async def test_equal_failures_in_a_row_are_one_row_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2pcache.agent.journal.MAX_WAITING", 5)
    store = Store.open(tmp_path / "cache")
    no_space = NoSpace("disk full")
    async with Tasks() as tasks:
        journal = Journal(store, tasks)
        journal.record("pull", ref="a:b", error=no_space)
        await journal.rows(9)
        with monkeypatch.context() as full:
            full.setattr(store, "add_history", Mock(side_effect=no_space))
            for ref in ("a:b", "a:b", "c:d", "c:d", "a:b"):
                journal.record("pull", ref=ref, error=no_space)
            journal.record("rm", ref="a:b")
            journal.record("rm", ref="a:b")
            # The newest first: two removals, and the failures before them.
            want = [("a:b", 1), ("a:b", 1), ("a:b", 1), ("c:d", 2), ("a:b", 3)]
            assert [(row.ref, row.times) for row in await journal.rows(9)] == want
        assert [(row.ref, row.times) for row in await journal.rows(9)] == want
    journal.close()
    store.close()


async def test_a_row_that_is_being_written_is_given_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "cache")
    add_history, read = store.add_history, store.history
    reading, go_on = threading.Event(), threading.Event()

    def fail(_: HistoryRow) -> None:
        raise NoSpace("disk full")

    def history_later(limit: int) -> list[HistoryRow]:
        """As the table is after a thread had the time to write."""
        reading.set()
        go_on.wait(0.3)
        return read(limit)

    def write_meanwhile() -> None:
        reading.wait(10)
        monkeypatch.setattr(store, "add_history", add_history)
        journal.close()
        go_on.set()

    async with Tasks() as tasks:
        journal = Journal(store, tasks)
        monkeypatch.setattr(store, "add_history", fail)
        journal.record("pull", ref="a:b")
        await asyncio.sleep(0.05)
        monkeypatch.setattr(store, "history", history_later)
        rows, _ = await asyncio.gather(journal.rows(9), asyncio.to_thread(write_meanwhile))
        assert [row.ref for row in rows] == ["a:b"]
        assert [row.ref for row in await journal.rows(9)] == ["a:b"]
    store.close()


def test_the_rate_of_a_resumed_pull_counts_new_bytes_only() -> None:
    row = HistoryRow(1.0, "pull", "m:v1", "", 94_000_000, 4.0, bytes_origin=60_000_000)
    assert row.as_json()["rate"] == 15_000_000
    assert row._replace(action="push", bytes_origin=0).as_json()["rate"] == 23_500_000
