"""An agent inside a command: what a pull without a daemon gets, and what it doesn't import."""

import asyncio
import contextlib
import gc
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from loadtest.kit.daemons import wait_until
from p2pcache.agent import embedded
from p2pcache.agent.embedded import run_embedded, run_lone
from p2pcache.agent.fetching.lone import LoneAgent
from p2pcache.agent.jobs.events import Events
from p2pcache.agent.settings import AgentSettings
from p2pcache.errors import Lost, NotFound, P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io.http.client import AgentClient
from p2pcache.io.models.store import Store
from p2pcache.io.tasks import Tasks
from tests.agent.kit import make_model, push

DATA = random.Random(7).randbytes(3_000_000)
REF = Ref.parse("team/m:v1")
OPTIONS = {
    "force_generation": False, "include": (), "exclude": (), "background": False, "hold": "",
    "hold_s": 0.0, "hold_pid": 0,
}  # fmt: skip
UNUSED = ("aiohttp", "prometheus_client", "OpenSSL", "cryptography", "psutil")


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    push(tmp_path / "origin", make_model(tmp_path / "model", {"w.bin": DATA}), str(REF))
    return AgentSettings(
        cache_dir=str(tmp_path / "cache"), origin=(tmp_path / "origin").as_uri(), min_free_bytes=0,
    )  # fmt: skip


def test_a_lone_pull_tells_the_same_as_a_call_of_the_api(
    settings: AgentSettings, tmp_path: Path
) -> None:
    with run_lone(settings) as pull:
        told = list(pull(REF, **OPTIONS))
    done = told[-1]
    assert done["bytes_origin"] == len(DATA)
    assert (Path(done["models_dir"]) / done["path"] / "w.bin").read_bytes() == DATA
    where = {"cache_dir": str(tmp_path / "other"), "socket": str(tmp_path / "agent.sock")}
    whole = msgspec.structs.replace(settings, **where, listen="127.0.0.1:0")
    with run_embedded(whole) as socket:
        called = list(AgentClient(f"unix://{socket}").pull(str(REF)))
    for events in (told, called):  # how many come between depends on the machine
        assert [events[0]["event"], events[-1]["event"]] == ["resolved", "done"]
        assert {event["event"] for event in events[1:-1]} <= {"progress"}
    assert [told[0].keys(), done.keys()] == [called[0].keys(), called[-1].keys()]


def _ports() -> set[int]:
    """Where this process listens."""
    found = psutil.Process().net_connections("inet")
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}


def test_a_lone_agent_has_no_port_for_peers(settings: AgentSettings, tmp_path: Path) -> None:
    """Everybody on this host can read in /proc/net/tcp where somebody listens."""
    before = _ports()
    with run_lone(settings) as pull:
        assert _ports() == before
        assert list(pull(REF, **OPTIONS))[-1]["event"] == "done"
    with run_embedded(msgspec.structs.replace(settings, socket=str(tmp_path / "agent.sock"),
                                              listen="127.0.0.1:0")):  # fmt: skip
        assert len(_ports() - before) == 1, "the test would see a port"


def test_an_interrupted_command_is_no_failure_in_the_history(settings: AgentSettings) -> None:
    """It said exit 8, "the agent is stopping", and `history --failed` listed it."""
    slow = msgspec.structs.replace(settings, origin_bytes_per_s=1_000_000)
    with run_lone(slow) as pull, contextlib.closing(pull(REF, **OPTIONS)) as events:
        assert next(event for event in events if event["event"] == "progress")
    store = Store.open(Path(settings.cache_dir))
    (row,) = store.history(10)
    store.close()
    assert (row.code, row.action, row.ref) == (130, "pull", str(REF))


@pytest.mark.parametrize("whole", [False, True])
def test_the_report_of_an_interrupted_command_counts_what_its_reads_still_bring(
    settings: AgentSettings, tmp_path: Path, whole: bool
) -> None:
    """`explain` told of 7.34 MB from storage, and of 9.44 MB that are here."""
    where = {"socket": str(tmp_path / "agent.sock"), "listen": "127.0.0.1:0"}
    slow = msgspec.structs.replace(settings, origin_bytes_per_s=1_000_000, **where)
    with contextlib.ExitStack() as stack:
        if whole:
            socket = stack.enter_context(run_embedded(slow))
            events = AgentClient(f"unix://{socket}").pull(str(REF))
        else:
            events = stack.enter_context(run_lone(slow))(REF, **OPTIONS)
        stack.enter_context(contextlib.closing(events))
        assert next(event for event in events if event.get("bytes_origin"))
    with contextlib.closing(Store.open(Path(settings.cache_dir))) as store:
        (row,), (model,) = store.history(10), store.models()
    assert 0 < row.bytes_origin == model.bytes_done < len(DATA)


def test_a_command_with_a_whole_agent_is_no_failure_in_the_history(
    settings: AgentSettings, tmp_path: Path
) -> None:
    """As above, of a pull with `--tracker`."""
    where = {"socket": str(tmp_path / "agent.sock"), "listen": "127.0.0.1:0"}
    slow = msgspec.structs.replace(settings, origin_bytes_per_s=1_000_000, **where)
    with (
        run_embedded(slow) as socket,
        contextlib.closing(AgentClient(f"unix://{socket}").pull(str(REF))) as events,
    ):
        assert next(event for event in events if event["event"] == "progress")
    with contextlib.closing(Store.open(Path(settings.cache_dir))) as store:
        (row,) = store.history(10)
    assert (row.code, row.action, row.ref) == (130, "pull", str(REF))


async def test_a_command_that_is_cancelled_is_no_failure_in_the_history(
    settings: AgentSettings,
) -> None:
    slow = msgspec.structs.replace(settings, origin_bytes_per_s=1_000_000)
    agent: Any = LoneAgent(slow)
    with pytest.raises(asyncio.CancelledError):  # noqa: PT012
        async with agent.running(), contextlib.aclosing(agent.pull_events(REF, **OPTIONS)) as told:
            async for event in told:
                if event["event"] == "progress":
                    raise asyncio.CancelledError
    with contextlib.closing(Store.open(Path(settings.cache_dir))) as store:
        (row,) = store.history(10)
    assert (row.code, row.action, row.ref) == (130, "pull", str(REF))


def test_its_errors_come_as_they_are(settings: AgentSettings) -> None:
    with run_lone(settings) as pull, pytest.raises(NotFound, match="team/other"):
        list(pull(Ref.parse("team/other:v1"), **OPTIONS))


class _Dies:
    """An agent that ends by itself when it is told to; it is no agent else."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.told = threading.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with Tasks() as tasks:
            _ = tasks.spawn(self._die(), name="dies")
            yield

    async def _die(self) -> None:
        while not self.told.is_set():
            await asyncio.sleep(0.01)
        raise self.error

    def pull_events(self, *_: object, **__: object) -> Events:
        return never()


async def never() -> Events:
    await asyncio.sleep(3600)
    yield {}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("error", [OSError("the disk went away"), NotFound("no such thing")])
def test_an_agent_that_ends_by_itself_says_why(
    settings: AgentSettings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It looked like a bug of the command, or the command waited for ever."""
    agent = _Dies(error)
    monkeypatch.setattr("p2pcache.agent.fetching.lone.LoneAgent", lambda *_: agent)
    with pytest.raises(P2PCacheError) as raised, run_lone(settings) as pull:  # noqa: PT012
        agent.told.set()
        wait_until(lambda: not any(t.name == "embedded-agent" for t in threading.enumerate()), 30)
        with pytest.raises(Lost, match="has ended"):
            list(pull(REF, **OPTIONS))
    assert str(error) in str(raised.value)
    gc.collect()  # a coroutine that was never awaited would say so


def test_a_reader_wakes_when_its_agent_ends(
    settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = _Dies(OSError("the disk went away"))
    monkeypatch.setattr("p2pcache.agent.fetching.lone.LoneAgent", lambda *_: agent)
    with pytest.raises(Lost, match="the disk went"), run_lone(settings) as pull:  # noqa: PT012
        threading.Timer(0.2, agent.told.set).start()
        list(pull(REF, **OPTIONS))


async def test_a_reader_wakes_when_the_loop_ends_before_it_began(
    settings: AgentSettings,
) -> None:
    loop = asyncio.new_event_loop()  # never runs: what is queued there never begins
    reader = embedded._events(loop, never)
    first = asyncio.get_running_loop().run_in_executor(None, lambda: next(reader))
    await asyncio.sleep(0.2)
    loop.close()
    with pytest.raises(Lost, match="has ended"):
        async with asyncio.timeout(30):
            await first


def test_a_pull_that_is_left_stops_reading(settings: AgentSettings, tmp_path: Path) -> None:
    ref, data = Ref.parse("team/large:v1"), random.Random(8).randbytes(24_000_000)
    push(tmp_path / "origin", make_model(tmp_path / "large", {"w.bin": data}), str(ref))
    slow = msgspec.structs.replace(
        settings, origin_bytes_per_s=8_000_000, shutdown_s=1.0, abandon_after_s=0.1
    )
    with run_lone(slow) as pull:
        events = pull(ref, **OPTIONS)
        assert next(events)["event"] == "resolved"
        events.close()
        time.sleep(5.0)  # all of it would come in three
    with run_lone(settings) as pull:
        done = list(pull(ref, **OPTIONS))[-1]
    assert done["event"] == "done"
    assert done["bytes_origin"] > 0, "it was read to the end all the same"


def test_a_hold_is_kept(settings: AgentSettings) -> None:
    for _ in range(2):
        with run_lone(settings) as pull:
            assert list(pull(REF, **OPTIONS | {"hold": "mine"}))[-1]["event"] == "done"
        with contextlib.closing(Store.open(Path(settings.cache_dir))) as store:
            assert [claim.name for claim in store.claims.all_claims()] == ["mine"]


def test_a_lone_agent_imports_nothing_that_it_doesnt_use() -> None:
    code = "import sys, p2pcache.agent.fetching.lone, p2pcache.io.origins.s3.origin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [name for name in UNUSED if name in done.stdout.split()] == []
