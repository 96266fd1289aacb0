"""The swarms that an agent tells the tracker of: in parts, and no more than it takes."""

import asyncio
import random
from pathlib import Path

import pytest

from p2pcache.agent import told_swarms
from p2pcache.agent.told_swarms import MOST_SWARMS, PART_BYTES, ToldSwarms
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import Chunk, encode, make_file, make_manifest
from p2pcache.core.protocol import messages as m
from p2pcache.io.models.store import Store
from tests.agent.jobs.warm_kit import cluster, get, model
from tests.agent.kit import agent, pull
from tests.tracker.kit import REF, publish, tracker


class Link:
    """What was sent, instead of a connection."""

    connected, losses = True, 0

    def __init__(self) -> None:
        self.sent: list[m.ToTracker] = []

    def send(self, message: m.ToTracker) -> None:
        self.sent.append(message)


class Swarm:
    """One model of the cache."""

    def __init__(self, number: int, *, wants: bool = False, known: int = 0, have: int = 0) -> None:
        self.digest = f"{number:064x}"
        self._wants, self._known, self._have = wants, known, have

    def wants(self) -> bool:
        return self._wants

    def state(self, *, announcing: bool = False) -> m.SwarmState:
        known = tuple((1 << 63) - 1 - i for i in range(self._known)) if announcing else ()
        return m.SwarmState(self.digest, 8 * self._have, b"\1" * self._have, known=known)


def told(link: Link, most: int = MOST_SWARMS) -> ToldSwarms:
    return ToldSwarms(link, most)  # type: ignore[arg-type]  # it needs no more of a link


def by_digest(swarms: list[Swarm]) -> dict[str, Swarm]:
    return {swarm.digest: swarm for swarm in swarms}


def digests(link: Link) -> list[str]:
    """The swarms that the tracker knows after all messages."""
    known: dict[str, None] = {}
    for one in link.sent:
        match one:
            case m.Enter(swarm):
                known[swarm.digest] = None
            case m.Exit(digest):
                del known[digest]
            case m.Heartbeat():
                known |= dict.fromkeys(state.digest for state in one.swarms)
    return list(known)


async def test_what_does_not_fit_into_one_message_follows() -> None:
    link = Link()
    swarms = [Swarm(i, have=60_000) for i in range(100)] + [Swarm(100, wants=True)]
    asked = told(link)
    first = asked.announce(swarms)
    assert len(m.encode(m.Announce("a:1", "1", swarms=first))) < m.MAX_MESSAGE_BYTES
    assert first[0].digest == swarms[-1].digest, "what is wanted is told first"
    await asked.send_rest(by_digest(swarms))
    assert {state.digest for state in first} | set(digests(link)) == {s.digest for s in swarms}
    assert all(len(m.encode(one)) < m.MAX_MESSAGE_BYTES for one in link.sent)


async def test_many_known_members_do_not_make_the_announcement_too_long() -> None:
    asked = told(Link())
    first = asked.announce([Swarm(i, wants=True, known=20_000) for i in range(40)])
    size = len(m.encode(m.Announce("a:1", "1", swarms=first)))
    assert PART_BYTES // 2 < size < 2 * PART_BYTES
    assert len(first[0].known) == 20_000


async def test_a_swarm_that_was_left_is_told_no_more() -> None:
    link = Link()
    asked, swarm = told(link), Swarm(1)
    asked.enter(swarm)
    asked.beat(swarm, m.Heartbeat())
    asked.exit(swarm.digest)
    asked.beat(swarm, m.Heartbeat())  # a read of it ended late
    assert not digests(link)
    assert [type(one) for one in link.sent] == [m.Enter, m.Heartbeat, m.Exit]


async def test_no_more_are_told_than_a_tracker_takes() -> None:
    link = Link()
    asked = told(link, most=10)
    swarms = [Swarm(i) for i in range(30)]
    first = asked.announce(swarms)
    assert [state.digest for state in first] == [Swarm(i).digest for i in range(10)]
    await asked.send_rest(by_digest(swarms))
    assert not link.sent
    asked.enter(Swarm(77))
    asked.enter(Swarm(78, wants=True))
    asked.beat(Swarm(79), m.Heartbeat())
    assert [type(one) for one in link.sent] == [m.Exit, m.Enter, m.Exit, m.Enter]
    assert [one.digest for one in link.sent if isinstance(one, m.Exit)] == [
        Swarm(9).digest, Swarm(8).digest,
    ]  # fmt: skip
    wanting = [Swarm(100 + i, wants=True) for i in range(8)]
    for swarm in wanting:
        asked.enter(swarm)
    before = len(link.sent)
    asked.enter(Swarm(200, wants=True))
    assert len(link.sent) == before + 2, "one more place was idle"
    asked.enter(Swarm(201, wants=True))
    assert len(link.sent) == before + 2


async def test_a_lost_connection_ends_the_rest() -> None:
    link = Link()
    asked = told(link)
    swarms = [Swarm(i, have=100_000) for i in range(40)]
    asked.announce(swarms)
    sending = asyncio.gather(asked.send_rest(by_digest(swarms)))
    await asyncio.sleep(0)
    link.losses += 1
    await sending
    assert 0 < len(link.sent) < 29


async def test_swarms_that_begin_after_the_announcement_are_told_the_wanted_first() -> None:
    link = Link()
    asked = told(link)
    before = [Swarm(i) for i in range(3)]
    asked.announce(before)
    late, wanted = Swarm(10), Swarm(11, wants=True)
    await asked.send_rest(by_digest([*before, late, wanted]))
    assert digests(link) == [wanted.digest, late.digest]


async def test_a_model_that_is_removed_before_its_turn_is_not_told() -> None:
    """The tracker counted this node as a holder of it until the connection ended."""
    link = Link()
    asked = told(link)
    swarms = by_digest([Swarm(i, have=100_000) for i in range(40)])
    asked.announce(swarms.values())
    sending = asyncio.gather(asked.send_rest(swarms))
    await asyncio.sleep(0)
    last = list(swarms)[-1]
    del swarms[last]
    asked.exit(last)
    await sending
    assert len(digests(link)) > 20
    assert last not in digests(link)


async def test_an_agent_with_many_models_is_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 4,200 models it never became one."""
    monkeypatch.setattr(told_swarms, "PART_BYTES", 20_000)
    store = Store.open(tmp_path / "a", min_free_bytes=0)
    for i in range(200):
        chunk = Chunk(5, random.Random(i).randbytes(32))
        manifest = make_manifest([make_file("f", [chunk])])
        store.add_model(Layout(manifest), encode(manifest))
    store.close()
    (tmp_path / "origin").mkdir()
    publish(tmp_path / "origin")
    async with (
        tracker(tmp_path / "origin") as app,
        agent(tmp_path, tracker=f"http://{app.address}") as one,
    ):
        async with asyncio.timeout(20):
            while len(app.tracking.swarms) < 200:
                await asyncio.sleep(0.02)
        assert one.link is not None
        assert one.link.connected
        assert (await pull(one, str(REF)))["code"] in (6, 7, 8), "the tracker resolves it"


async def test_a_heartbeat_for_one_swarm_says_how_the_node_is_too(tmp_path: Path) -> None:
    """The tracker took the disk of a node that has just ended a pull for full until the next one, and warmed others."""
    model(tmp_path)
    async with cluster(tmp_path, "") as (app,):
        assert (await pull(app, "team/m:v1"))["event"] == "done"
        assert app.downloads.swarms
        for _ in range(2):
            (row,) = (await get(app, "/v1/nodes"))["nodes"]
            assert row["free_bytes"] > 0
            for swarm in app.downloads.swarms.values():
                swarm.tell_tracker()
