"""`rm` and `prune` while other calls use the model: one call is refused, and no model is half removed."""

import asyncio
import errno
import gc
import random
import threading
from collections import Counter
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.jobs import loads
from p2pcache.agent.jobs.housekeeping import local_model, open_model
from p2pcache.agent.jobs.loads import Loads
from p2pcache.core.format.layout import Layout
from p2pcache.errors import Conflict, NotFound
from p2pcache.ids import Ref
from p2pcache.io.imports.import_folder import FOLDER, ImportFolder
from tests.agent.kit import HeldReads, agent, client, make_model, pull, push
from tests.io.models.store_kit import held_deleted

REF = Ref.parse("team/m:v1")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    files = {"weights.bin": random.Random(5).randbytes(1_000_000)}
    return push(tmp_path / "origin", make_model(tmp_path / "model", files), str(REF))


class HeldDisk:
    """Nothing is made durable, shown or removed until it is let go."""

    def __init__(self, app: AgentApp) -> None:
        self._maintenance = app.store._blobs.maintenance
        self._go = threading.Event()
        taken = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(taken,))
        self._thread.start()
        assert taken.wait(30)

    def _hold(self, taken: threading.Event) -> None:
        with self._maintenance:
            taken.set()
            self._go.wait(60)

    def let_go(self) -> None:
        self._go.set()
        self._thread.join()


async def remove(app: AgentApp) -> tuple[int, dict[str, Any]]:
    async with client(app) as session, session.delete(f"/v1/model?ref={REF}") as answer:
        return answer.status, await answer.json()


async def prune(app: AgentApp) -> dict[str, Any]:
    async with client(app) as session, session.post("/v1/prune", json={"all": True}) as answer:
        told: dict[str, Any] = await answer.json()
        return told


async def test_a_pull_runs_until_its_model_is_shown(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flushing a large model takes a while, in which nothing is fetched any more."""
    reads = HeldReads(monkeypatch)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app, asyncio.timeout(30):
        pulling = asyncio.gather(pull(app, str(REF)))
        await reads.until_begun()
        disk = HeldDisk(app)
        reads.let_go.set()
        while app.downloads.running:
            await asyncio.sleep(0.01)
        while not app.downloads.in_use:
            await asyncio.sleep(0.01)
        status, told = await remove(app)
        assert (status, told["code"]) == (409, 10)
        disk.let_go()
        (done,) = await pulling
        assert done["event"] == "done"
        assert (Path(done["models_dir"]) / done["path"] / "weights.bin").is_file()
        assert layout.digest in app.downloads.swarms, "it is served"
        assert (await remove(app))[0] == 200


async def test_prune_leaves_models_in_use(tmp_path: Path, layout: Layout) -> None:
    """By a push, for example."""
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await pull(app, str(REF))
        swarm = app.downloads.swarms[layout.digest]
        swarm.store.pin()
        assert (await remove(app))[0] == 409
        assert (await prune(app))["removed"] == []
        assert app.downloads.swarms[layout.digest] is swarm
        swarm.store.unpin()
        assert len((await prune(app))["removed"]) == 1
        assert not app.downloads.swarms


async def test_an_evicted_model_cannot_be_verified(tmp_path: Path, layout: Layout) -> None:
    async with (
        agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app,
        client(app) as session,
    ):
        await pull(app, str(REF))
        async with session.post("/v1/evict", json={"ref": str(REF)}) as answer:
            assert answer.status == 200
        async with session.post("/v1/verify", json={"ref": str(REF)}) as answer:
            told = await answer.text()
        assert f"{REF} was evicted; `p2pcache pull {REF}` brings it back" in told


async def test_a_model_that_was_removed_meanwhile_is_not_here(
    tmp_path: Path, layout: Layout
) -> None:
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await pull(app, str(REF))
        known = await local_model(app.store, REF)
        assert (await prune(app))["removed"]
        with pytest.raises(NotFound, match=f"{REF} is not in this cache"):
            await open_model(app.store, app.downloads, REF, known)


async def test_prune_removes_what_an_interrupted_import_left(tmp_path: Path) -> None:
    async with agent(tmp_path) as app:
        folder = ImportFolder(app.store.root / FOLDER / ("abc0" * 8))
        folder.part("weights.bin").write_bytes(bytes(100_000))
        assert (await prune(app))["removed"] == [], "it runs"
        folder.close()
        told = await prune(app)
        assert told["removed"] == ["interrupted import " + "abc0" * 8 + " (1 file)"]
        assert told["bytes_freed"] >= 100_000
        assert not folder.path.exists()


async def test_a_removed_model_is_not_published(tmp_path: Path, layout: Layout) -> None:
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await pull(app, str(REF))
        with ExitStack() as use:
            download = await app.downloads.join_or_begin(REF, layout.digest, use)
            assert (await remove(app))[0] == 409
        assert (await remove(app))[0] == 200
        with pytest.raises(Conflict, match="removed while it was pulled"):
            await app.downloads.publish_model(download, REF, 1)
        with pytest.raises(Conflict, match="removed while it was pulled"):
            await app.downloads.publish_files(download, REF, ["weights.bin"])
        assert (await pull(app, str(REF)))["event"] == "done"


@pytest.mark.parametrize("how", ["pull", "load", "files"])
async def test_a_pull_under_way_keeps_its_model(
    tmp_path: Path, layout: Layout, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From when its client has heard what the ref means, to its end."""
    monkeypatch.setattr(loads, "OPENS_S", 0.5)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await pull(app, str(REF))
        pulls, include = app.warms._pulls, ["weights.bin"] if how == "files" else []
        events = (
            Loads(app.context, app.downloads, pulls).events(REF, needed=False, client="c")
            if how == "load"
            else pulls.events(REF, force=False, include=include, exclude=[], background=False)
        )
        told = []
        async with aclosing(events):
            async for event in events:
                told.append(event["event"])
                assert (await prune(app))["removed"] == []
                assert (await remove(app))[0] == 409
        assert told[-1] == "done"
        while app.downloads.in_use:
            await asyncio.sleep(0.01)
        assert len((await prune(app))["removed"]) == 1


async def test_pulls_beside_prunes_and_evictions(tmp_path: Path, layout: Layout) -> None:
    """Whichever comes first, the other waits, or leaves the model alone."""
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        gone = Counter[str]()
        pauses = random.Random(1)

        async def pulls() -> None:
            while min(gone["pruned"], gone["evicted"]) < 2:
                told = await pull(app, str(REF))
                assert told["event"] == "done", told
                await asyncio.sleep(pauses.uniform(0, 0.05))

        async def removals() -> None:
            while True:
                gone["pruned"] += len((await prune(app))["removed"])
                await asyncio.sleep(pauses.uniform(0, 0.02))
                async with (
                    client(app) as session,
                    session.post("/v1/evict", json={"ref": str(REF)}) as answer,
                ):
                    gone["evicted"] += answer.status == 200
                await asyncio.sleep(pauses.uniform(0, 0.02))

        removing = asyncio.gather(removals(), removals())
        async with asyncio.timeout(60):
            await asyncio.gather(pulls(), pulls(), pulls())
        assert not removing.done()
        removing.cancel()
        await asyncio.wait([removing])


async def test_a_pull_that_comes_while_its_model_is_removed(tmp_path: Path, layout: Layout) -> None:
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app, asyncio.timeout(30):
        await pull(app, str(REF))
        disk = HeldDisk(app)
        pruning = asyncio.gather(prune(app))
        while app.downloads.swarms:
            await asyncio.sleep(0.01)
        pulling = asyncio.gather(pull(app, str(REF)))
        await asyncio.sleep(0.1)
        disk.let_go()
        ((pruned,), (pulled,)) = await pruning, await pulling
        assert len(pruned["removed"]) == 1
        assert pulled["event"] == "done"


async def test_a_model_that_is_removed_before_its_first_byte(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had been made known, and nothing was fetched yet: no trouble with the disk."""
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        with monkeypatch.context() as patch:

            def pruned(_ref: Ref, _digest: str) -> None:
                assert app.store.prune(all_unused=True).removed

            patch.setattr(app.store, "ask", pruned)
            refused = await pull(app, str(REF))
        assert refused["code"] == 10
        assert "removed while it was pulled" in refused["message"]
        assert (await pull(app, str(REF)))["event"] == "done"


async def test_a_pull_that_failed_keeps_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    """On a full disk, what `prune` removes must be free at once, not with the next garbage."""
    more = (tmp_path / "model" / "weights.bin").read_bytes() + bytes(300_000)
    push(tmp_path / "origin", make_model(tmp_path / "more", {"w": more}), "team/more:v1")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await pull(app, str(REF))
        with monkeypatch.context() as patch:
            patch.setattr("p2pcache.io.disk.disk.Disk.copy_range", full)
            gc.disable()
            try:
                assert (await pull(app, "team/more:v1"))["code"] == 5
                assert len((await prune(app))["removed"]) == 2
                assert held_deleted(tmp_path) == []
            finally:
                gc.enable()
