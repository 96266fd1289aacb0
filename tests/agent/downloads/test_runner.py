"""One download from its beginning to its row in the history."""

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from p2pcache.agent.downloads import runner as runners
from p2pcache.agent.downloads.download import Download
from p2pcache.agent.downloads.runner import DownloadRunner
from p2pcache.core.host.pull_timeline import Timeline
from p2pcache.core.swarm.events import Source
from p2pcache.errors import Cancelled, NoSpace, OriginUnavailable, P2PCacheError, Unreachable
from p2pcache.ids import Ref, RunSet
from p2pcache.io.tasks import Tasks

REF = Ref.parse("team/m:v1")
TOTAL = 1000


class Store:
    """The model's part of the cache."""

    def __init__(self, copied: RunSet) -> None:
        self.copied = copied
        self.flushes = self.pins = 0
        self.published: list[Ref] = []

    def copy_local(self) -> RunSet:
        return self.copied

    def flush(self) -> None:
        self.flushes += 1

    def unpin(self) -> None:
        self.pins -= 1

    def publish(self, ref: Ref, _generation: int | None) -> None:
        self.published.append(ref)


class Swarm:
    """A driver without a network: the test says what comes."""

    def __init__(self, copied: RunSet = 0) -> None:
        self.digest = "d" * 64
        self.layout = SimpleNamespace(total_bytes=TOTAL)
        self.store = Store(copied)
        self.scheduler = None
        self.traffic = dict.fromkeys(Source, 0)
        self.bytes_done = self.unflushed_bytes = 0
        self.complete = self.idle = False
        self.pulled = True
        self.started: list[RunSet] = []
        self.pauses = 0
        self.trouble: P2PCacheError | None = None
        self.on_bytes: Callable[..., None] = lambda *_: None
        self.on_finished: Callable[[], None] = lambda: None
        self.on_failed: Callable[[P2PCacheError], None] = lambda _: None

    def on_proved(self, _runs: RunSet, source: Source) -> None:
        self.traffic[source] += TOTAL
        self.bytes_done, self.complete = TOTAL, True

    def start(self, wanted: RunSet) -> None:
        self.started.append(wanted)

    def pause(self) -> None:
        self.pauses += 1

    def why_give_up(self, _now: float) -> P2PCacheError | None:
        return self.trouble


class Desk:
    """One runner, its history, and the download of one model."""

    def __init__(self, *, copied: RunSet = 0, whole: bool = True, **settings: Any) -> None:
        self.swarm = Swarm(copied)
        self.rows: list[dict[str, Any]] = []
        self.wrong = ""  # what reads of the origin found
        self.odd: tuple[Ref, str] | None = None
        self.tasks = Tasks()
        limits = {"flush_interval_s": 60.0, "flush_bytes": 1 << 30, "abandon_after_s": 60.0}
        store = SimpleNamespace(tags_of=lambda _: [REF, Ref.parse("team/m:v2")])
        context: Any = SimpleNamespace(
            settings=SimpleNamespace(**{**limits, **settings}), origin=self, store=store,
            tasks=self.tasks, now=lambda: asyncio.get_running_loop().time(),
        )  # fmt: skip
        self.runner = DownloadRunner(context, self)  # type: ignore[arg-type]
        self.swarm.store.pins = 1
        now = asyncio.get_running_loop().time()
        swarm: Any = self.swarm
        self.download = Download(REF, swarm, Timeline(now), now, 0.0, whole=whole)
        self.swarm.on_finished, self.swarm.on_failed = self.download.succeed, self.download.fail
        self.ends = Counter[bool]()  # by whether the row was written before

    def take_wrong(self, _digest: str) -> str:
        return self.wrong

    def record(self, action: str, **row: Any) -> None:
        self.rows.append({"action": action, **row})

    def run(self) -> asyncio.Task[None]:
        work = self.runner.run_download(self.download, lambda: self.ends.update([bool(self.rows)]))
        return asyncio.get_running_loop().create_task(work)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "TICK_S", 0.01)
    monkeypatch.setattr(runners, "PART_END_S", 0.05)
    monkeypatch.setattr(runners, "SHOWN_S", 0.05)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.005)


async def test_a_model_whose_bytes_are_in_the_cache_ends_at_once() -> None:
    desk = Desk(copied=1)
    await desk.run()
    assert desk.download.error is None
    assert desk.swarm.traffic[Source.LOCAL] == TOTAL
    assert (desk.swarm.pauses, desk.swarm.store.pins, desk.swarm.pulled) == (0, 0, False)
    assert desk.ends == {False: 1}
    assert desk.rows == [], "a client may publish it first"
    await until(lambda: desk.rows)
    (row,) = desk.rows
    assert (row["action"], row["ref"], row["error"], row["size_bytes"]) == (
        "pull",
        str(REF),
        None,
        TOTAL,
    )
    assert row["sources"] == {"bytes_origin": 0, "bytes_peers": 0, "bytes_local": TOTAL}


async def test_a_wait_that_ends_soon_counts_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a second of "no peer has what is missing" was in each report, whatever the peers had."""
    monkeypatch.setattr(runners, "TICK_S", 10.0)
    desk, looks = Desk(), iter(["nobody", *["peers"] * 100])
    scheduler: Any = SimpleNamespace(waits_for=lambda _now: next(looks))
    desk.swarm.scheduler = scheduler
    work = desk.run()
    await asyncio.sleep(0.5)
    desk.download.succeed()
    await work
    waited = desk.download.timeline.report(0.0)["waited"]
    assert isinstance(waited, dict)
    assert waited["nobody"] < waited["peers"]


async def test_the_row_is_written_once_and_at_the_latest_when_the_agent_stops() -> None:
    desk = Desk(copied=1)
    await desk.run()
    desk.runner.stop([])
    assert len(desk.rows) == 1
    desk.runner.note_download(desk.download)
    await asyncio.sleep(2 * runners.SHOWN_S)
    assert len(desk.rows) == 1


async def test_a_failure_is_noted_at_once_and_the_swarm_pauses() -> None:
    desk = Desk()
    task = desk.run()
    await until(lambda: desk.swarm.started)
    desk.swarm.on_failed(NoSpace("the disk is full"))
    await task
    assert isinstance(desk.download.error, NoSpace)
    assert [type(row["error"]) for row in desk.rows] == [NoSpace]
    assert (desk.swarm.pauses, desk.swarm.store.pins) == (1, 0)


async def test_a_swarm_that_gives_up_ends_it() -> None:
    desk = Desk()
    task = desk.run()
    desk.swarm.trouble = OriginUnavailable("storage is away, and nobody has it")
    await task
    assert desk.download.error is desk.swarm.trouble


async def test_nobody_waits_for_it_any_more() -> None:
    desk = Desk(abandon_after_s=0.1)
    with desk.download.client(REF):
        task = desk.run()
        await asyncio.sleep(0.3)
        assert not task.done()
    await task
    assert isinstance(desk.download.error, Cancelled)


async def test_a_part_ends_a_moment_after_its_last_client() -> None:
    desk = Desk(whole=False)
    desk.swarm.idle = True
    with desk.download.client(REF):
        task = desk.run()
        await asyncio.sleep(4 * runners.PART_END_S)
        assert not task.done()
    await task
    assert desk.download.error is None
    assert desk.swarm.store.flushes == 1
    assert desk.swarm.pauses == 1, "the rest of the model isn't fetched"
    assert len(desk.rows) == 1


@pytest.mark.parametrize("due", [{"flush_bytes": 10}, {"flush_interval_s": 0.0}])
async def test_bytes_are_flushed_by_amount_and_by_time(due: dict[str, Any]) -> None:
    desk = Desk(**due)
    task = desk.run()
    await asyncio.sleep(0.05)
    assert desk.swarm.store.flushes == 0, "nothing has come"
    desk.swarm.unflushed_bytes = 10
    await until(lambda: desk.swarm.store.flushes)
    assert desk.swarm.unflushed_bytes == 0
    desk.swarm.on_finished()
    await task
    assert desk.swarm.store.flushes == 1


async def test_a_stop_of_the_agent_ends_it_with_a_word() -> None:
    desk = Desk()
    task = desk.run()
    await until(lambda: desk.swarm.started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(desk.download.error, Unreachable)
    assert "it resumes" in str(desk.download.error)


async def test_wrong_bytes_of_storage_are_told_of_after_a_good_end() -> None:
    desk = Desk(copied=1)
    desk.wrong = "run 3 was wrong at two nodes"
    await desk.run()
    assert desk.odd == (REF, desk.wrong)


async def test_left_alone_a_swarm_publishes_what_it_repaired_under_all_tags() -> None:
    desk = Desk(copied=1)
    async with desk.tasks:
        await desk.run()
        desk.swarm.on_finished()
        await until(lambda: len(desk.swarm.store.published) == 2)
    assert desk.swarm.store.published == [REF, Ref.parse("team/m:v2")]
    desk.swarm.on_failed(NoSpace("the disk is full"))
    assert desk.swarm.pauses == 1
    assert len(desk.ends) == 1
    assert desk.download.error is None, "the download had ended well"
