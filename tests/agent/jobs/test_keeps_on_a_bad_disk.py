"""A disk that is full, has no inodes left, or is read-only, at each stage of keep, repair and evict: nothing is lost,
the reason is told, and when it is well again all goes on by itself."""

import asyncio
import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.jobs import room
from p2pcache.agent.keep import keeps
from p2pcache.core.format.layout import Layout
from p2pcache.errors import IntegrityError, NotAllowed
from p2pcache.io.disk.disk import Disk
from p2pcache.io.disk.sqlite_file import SqliteFile
from p2pcache.io.notes.kept_orders import FILE, KeptOrders
from tests.agent.jobs.test_keeps import MB, has, order, span, tell, until_has
from tests.agent.jobs.warm_kit import cluster, get, until
from tests.agent.kit import agent, client, make_model, pull, push
from tests.io.models.crash_kit import STEPS
from tests.io.models.store_kit import small_file_system

REF = "team/m:v1"
SIZE = 4 * MB
INODES = 150


@contextlib.contextmanager
def full(place: Path, _patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Not a block is free."""
    with (place / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    yield
    (place / "filler").unlink()


@contextlib.contextmanager
def no_inodes(place: Path, _patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Not a file more can be made."""
    (place / "files").mkdir()
    with contextlib.suppress(OSError):
        for n in range(INODES):
            (place / "files" / str(n)).touch()
    yield
    for path in (place / "files").iterdir():
        path.unlink()
    (place / "files").rmdir()


@contextlib.contextmanager
def read_only(_place: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """As when the kernel makes it so; by hand, for files are open for writing."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def refuse_rows(*_: Any) -> None:
        raise NotAllowed("agent.db: attempt to write a readonly database")

    with patch.context() as patched:
        for step in STEPS:
            if step not in ("sync", "sync_data", "sync_all"):
                patched.setattr(Disk, step, refuse)
        patched.setattr(SqliteFile, "_write", refuse_rows)
        yield


Fault = Callable[[Path, pytest.MonkeyPatch], contextlib.AbstractContextManager[None]]
FAULTS = pytest.mark.parametrize("fault", [full, no_inodes, read_only])


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeps, "LOOK_S", 0.1)
    monkeypatch.setattr(keeps, "AGAIN_S", 0.2)
    monkeypatch.setattr(keeps, "LONGEST_S", 0.5)
    monkeypatch.setattr(room, "FRESH_S", 0.0)
    monkeypatch.setattr("p2pcache.agent.keep.kept_report.REPORT_S", 0.1)
    said = AgentApp.announcement
    monkeypatch.setattr(
        AgentApp, "announcement", lambda app: msgspec.structs.replace(said(app), keeps=False)
    )


def model(tmp: Path) -> Layout:
    data = {"weights.bin": random.Random(1).randbytes(SIZE), "config.json": b"{}"}
    return push(tmp / "origin", make_model(tmp / "m", data), REF)


@contextlib.asynccontextmanager
async def on_a_small_disk(tmp: Path, where: dict[str, str]) -> Any:
    with small_file_system(tmp / "small", 4 * SIZE, INODES) as place:
        async with agent(tmp, "kept", cache_dir=str(place / "cache"), **where) as app:
            await until(lambda: app.link is not None and app.link.connected)
            yield place, app


async def told(app: AgentApp, sent: list[Any]) -> str:
    """Why an order isn't carried out, as the tracker is told."""

    def whys() -> list[str]:
        return [row.detail for said in sent for row in getattr(said, "kept", ()) if row.detail]

    await until(whys)
    return whys()[-1]


def spied(app: AgentApp) -> list[Any]:
    assert app.link is not None
    sent: list[Any] = []
    send = app.link.send

    def spy(message: Any) -> None:
        sent.append(message)
        send(message)

    app.link.send = spy  # type: ignore[method-assign]
    return sent


async def evict(app: AgentApp) -> tuple[int, dict[str, Any]]:
    async with client(app) as session, session.post("/v1/evict", json={"ref": REF}) as answer:
        return answer.status, await answer.json()


@FAULTS
async def test_orders_are_carried_out_when_the_disk_is_well_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    layout = model(tmp_path)
    half, count = layout.run_count // 2, layout.run_count
    async with cluster(tmp_path, "", upload_bytes_per_s=5 * MB) as (seed,):
        assert (await pull(seed, REF))["event"] == "done"
        where = {"tracker": seed.settings.tracker}
        async with on_a_small_disk(tmp_path, where) as (place, app):
            sent = spied(app)
            with fault(place, monkeypatch):  # an order comes
                await tell(app, order(layout, (0, half)))
                why = await told(app, sent)
                assert any(word in why for word in ("space", "inodes", "Read-only", "readonly")), (
                    why
                )
            await until_has(app, layout, span(0, half))
            await until(lambda: not app.store.orders.unwritten)
            after_a_restart = KeptOrders(place / "cache" / FILE).all_kept()
            assert after_a_restart == app.store.orders.all_kept()
            await tell(app, order(layout, (0, count)))  # a repair: more is to be here
            await until(lambda: has(app, layout) != span(0, half))
            with fault(place, monkeypatch):  # in the middle of it
                await asyncio.sleep(0.25)
                assert has(app, layout) & span(0, half) == span(0, half), "nothing is lost"
            await until_has(app, layout, span(0, count))
            with fault(place, monkeypatch):  # a part is to go
                await tell(app, order(layout, (0, half)))
                await asyncio.sleep(0.25)
                assert has(app, layout) & span(0, half) == span(0, half)
            await until_has(app, layout, span(0, half))
            await until(lambda: app.store.usage().cached_bytes <= SIZE // 2 + MB)
            model_here = app.downloads.swarms[layout.digest].store
            assert model_here.verify() == [], "no wrong byte"


async def test_what_a_read_only_disk_keeps_is_served_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a `prune` or `rm` that was refused nobody got it from this node until somebody pulled it here."""
    layout = model(tmp_path)
    async with agent(tmp_path, "a", origin=(tmp_path / "origin").as_uri()) as app:
        assert (await pull(app, REF))["event"] == "done"
        with read_only(tmp_path, monkeypatch):
            async with client(app) as session:
                async with session.post("/v1/prune", json={"all": True}) as answer:
                    assert (await answer.json())["code"] == 4
                assert layout.digest in app.downloads.swarms
                async with session.delete(f"/v1/model?ref={REF}") as answer:
                    assert (await answer.json())["code"] == 4
                assert layout.digest in app.downloads.swarms
        assert app.downloads.swarms[layout.digest].complete


async def test_a_model_that_was_not_opened_yet_is_served_after_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that can't be opened keeps neither the others from it nor the refusal from its caller."""
    layout = model(tmp_path)
    other = push(tmp_path / "origin", make_model(tmp_path / "m2", {"w": b"other"}), "team/m2:v1")
    async with agent(tmp_path, "a", origin=(tmp_path / "origin").as_uri()) as app:
        assert (await pull(app, REF))["event"] == "done"
        assert (await pull(app, "team/m2:v1"))["event"] == "done"
        for digest in (layout.digest, other.digest):  # as after a start
            app.downloads._forget_swarm(app.downloads.swarms[digest])
            app.downloads.unopened[digest] = "team/some:v1"
        of_store = type(app.store).get
        first = app.store.models()[0].digest

        def get(store: Any, digest: str) -> Any:
            if digest == first:
                raise IntegrityError("its layout is damaged")
            return of_store(store, digest)

        monkeypatch.setattr(type(app.store), "get", get)
        with read_only(tmp_path, monkeypatch):
            async with (
                client(app) as session,
                session.post("/v1/prune", json={"all": True}) as answer,
            ):
                assert (await answer.json())["code"] == 4
        served = app.downloads.swarms.keys() | app.downloads.unopened.keys()  # now or soon
        assert served == {layout.digest, other.digest} - {first}


@FAULTS
async def test_an_eviction_is_done_or_refused_and_done_when_the_disk_is_well_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    model(tmp_path)
    where = {"origin": (tmp_path / "origin").as_uri()}
    with small_file_system(tmp_path / "small", 4 * SIZE, INODES) as place:
        async with agent(tmp_path, "a", cache_dir=str(place / "cache"), **where) as app:
            assert (await pull(app, REF))["event"] == "done"
            with fault(place, monkeypatch):
                again = await pull(app, REF)
                assert again["event"] == "done", "what is here can be had from any disk"
                status, said = await evict(app)
                (row,) = (await get(app, "/v1/models"))["models"]
            if status != 200:
                assert said["code"] in (4, 5), said
                assert row["complete"], "what is refused changes nothing"
                status, said = await evict(app)
            assert status == 200, said
            await until(lambda: app.store.usage().cached_bytes == 0)
            (row,) = (await get(app, "/v1/models"))["models"]
            assert row["remote"]
            assert (await pull(app, REF))["event"] == "done"
