"""Member connections over real WebSockets: handshake, limits, leases, comings and goings."""

import asyncio
import contextlib
import time
from pathlib import Path

import aiohttp
import msgspec
import pytest

from p2pcache.core import bitset
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.settings import MemberSettings
from p2pcache.errors import NotAllowed, UsageError
from p2pcache.io.clock import MOST_S
from p2pcache.tracker.app import SILENCE_S, TrackerApp
from p2pcache.tracker.members import connection, handshake_places, hub
from p2pcache.tracker.settings import TrackerSettings
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import X, get, tracker

KEY = "0123456789abcdef0123456789abcdef"


async def beat_for_ever(agent: FakeAgent) -> None:
    while True:
        await asyncio.sleep(0.2)
        await agent.beat()


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    return str(path)


async def test_a_member_is_settled_and_listed() -> None:
    async with tracker() as app, FakeAgent(7).member(app.address) as agent:
        settled = await agent.wait_for(m.Settled)
        assert (settled.heartbeat_s, settled.lease_ttl_s) == (5.0, 15.0)
        await agent.beat()
        await agent.ask("status")
        _, body = await get(app.address, "/v1/nodes")
        (row,) = body["nodes"]
        assert row["node"] == "0000000000000007"
        assert row["address"] == "127.0.0.1:7007"
        assert (row["free_bytes"], row["cached_bytes"], row["load"]) == (1000, 2000, 3)
        assert row["limit_bytes"] == 3000, "without a quota, the rest of the disk counts"
        await agent.send(m.Heartbeat(free_bytes=1000, cached_bytes=2000, quota_bytes=2500))
        await agent.ask("status")
        async with asyncio.timeout(5):
            while row["limit_bytes"] != 2500:
                ((row,),) = ((await get(app.address, "/v1/nodes"))[1]["nodes"],)


async def test_the_right_key_is_needed(key_file: str) -> None:
    async with tracker(cluster_key_file=key_file) as app:
        async with FakeAgent(1, Secret(KEY.encode())).member(app.address):
            pass
        for wrong in (Secret(b""), Secret(b"x" * 32)):
            with pytest.raises((NotAllowed, TypeError)):
                async with FakeAgent(2, wrong).member(app.address):
                    pass
        assert app.members.log.refused == 2


async def test_node_id_zero_is_refused() -> None:
    async with tracker() as app:
        with pytest.raises((NotAllowed, TypeError)):
            async with FakeAgent(0).member(app.address):
                pass
        assert app.members.log.refused == 1
        assert len(app.members) == 0


async def test_a_wrong_first_word_ends_the_handshake() -> None:
    async with tracker() as app, aiohttp.ClientSession() as http:
        for words in (b"\xc1garbage", b"x" * 2000, b"", msgspec.msgpack.encode([1, 2])):
            async with http.ws_connect(f"http://{app.address}/v1/member") as socket:
                await socket.receive_bytes()
                await socket.send_bytes(words)
                frame = await socket.receive(timeout=30)
                assert frame.type is aiohttp.WSMsgType.CLOSE
                assert frame.data == aiohttp.WSCloseCode.POLICY_VIOLATION
        assert app.members.log.refused == 4
        assert len(app.members) == 0


async def test_the_handshake_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HANDSHAKE_S", 0.05)
    async with tracker() as app, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"http://{app.address}/v1/member") as socket:
            await socket.receive_bytes()
            frame = await socket.receive(timeout=30)
        assert frame.type is aiohttp.WSMsgType.CLOSE
        assert "too long" in str(frame.extra)


async def test_strangers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake_places, "MOST", 1)
    async with tracker() as app, aiohttp.ClientSession() as http:
        url = f"http://{app.address}/v1/member"
        async with http.ws_connect(url) as first:
            await first.receive_bytes()
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await http.ws_connect(url)
            assert caught.value.status == 503


async def test_the_first_message_is_the_announcement() -> None:
    async with tracker() as app, FakeAgent(1).member(app.address, announce=False) as agent:
        await agent.send(m.Heartbeat())
        assert await agent.wait_closed() == aiohttp.WSCloseCode.POLICY_VIOLATION


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xff", msgspec.msgpack.encode([99, 1]), msgspec.msgpack.encode([3, [1, 2]]),
     m.encode(m.Enter(m.SwarmState("not a digest", 4))), b"\x91" * 5000,
     m.encode(m.LeaseReport(X, 1, done=(-1,)))],
)  # fmt: skip
async def test_garbage_drops_the_sender_only(data: bytes) -> None:
    async with tracker() as app, FakeAgent(1).member(app.address) as other:
        async with FakeAgent(2).member(app.address) as agent:
            await agent.enter(X, 4)
            await agent.wait_for(m.Swarm)
            await agent.send_raw(data)
            assert await agent.wait_closed() == aiohttp.WSCloseCode.POLICY_VIOLATION
        await other.ask("status")


async def test_text_frames_and_oversize_are_refused() -> None:
    async with tracker() as app:
        async with FakeAgent(2).member(app.address) as agent:
            assert agent._socket is not None
            await agent._socket.send_str("hello")
            assert await agent.wait_closed() == aiohttp.WSCloseCode.POLICY_VIOLATION
        async with FakeAgent(2).member(app.address) as agent:
            await agent.send_raw(b"x" * (m.MAX_MESSAGE_BYTES + 1))
            assert await agent.wait_closed() in (
                aiohttp.WSCloseCode.MESSAGE_TOO_BIG, aiohttp.WSCloseCode.ABNORMAL_CLOSURE, 0
            )  # fmt: skip
        async with FakeAgent(3).member(app.address) as agent:
            await agent.ask("status")


async def test_a_newer_connection_replaces_the_older() -> None:
    async with tracker() as app, FakeAgent(5).member(app.address) as old:
        async with FakeAgent(5).member(app.address) as new:
            await old.wait_closed()
            await new.ask("status")
            assert len(app.members) == 1
            record = app.tracking.registry.nodes[5]
            assert record.connected


async def test_a_storm_reads_each_run_once() -> None:
    agents = [FakeAgent(n) for n in range(1, 6)]
    async with tracker() as app:
        async with contextlib.AsyncExitStack() as stack:
            for agent in agents:
                await stack.enter_async_context(agent.member(app.address))
            for agent in agents:
                agent.credit = 2
                await agent.enter(X, 100)
            everything = lambda: sum(len(a.origin_reads) for a in agents) >= 100  # noqa: E731
            await agents[0].until(everything)
            await asyncio.sleep(0.05)
            reads = sorted(run for agent in agents for run in agent.origin_reads)
            assert reads == list(range(100))
            for agent in agents:
                await agent.until(lambda a=agent: a.known.get(X) == {1, 2, 3, 4, 5})  # type: ignore[misc]
            _, body = await get(app.address, "/v1/swarms")
            (row,) = body["swarms"]
            assert (row["members"], row["runs"], row["done"], row["granted"]) == (5, 100, 100, 100)


async def test_a_killed_agents_leases_go_on_elsewhere() -> None:
    async with tracker(quick=True) as app, FakeAgent(2).member(app.address) as other:
        async with FakeAgent(1).member(app.address) as dying:
            dying.read_s = -1
            dying.credit = 16
            await dying.enter(X, 20)
            await dying.wait_for(m.Grant)
            other.credit = 4
            await other.enter(X, 20)
        beating = asyncio.get_running_loop().create_task(beat_for_ever(other))
        await other.until(lambda: other.have[X] == bitset.full(20))
        beating.cancel()
        assert sorted(other.origin_reads) == list(range(20))


async def test_silence_ends_a_member() -> None:
    async with tracker(quick=True) as app, FakeAgent(1).member(app.address) as agent:
        await agent.wait_closed()
        assert not app.tracking.registry.nodes


async def test_a_pause_of_the_tracker_is_no_silence_of_members() -> None:
    """A machine that was paused, or a process that got no CPU time, hears nobody meanwhile."""
    app = TrackerApp(
        TrackerSettings(listen="127.0.0.1:0"), members=MemberSettings(expiry_s=2 * MOST_S)
    )
    async with app.running(), FakeAgent(1).member(app.address) as agent:
        time.sleep(4 * MOST_S)  # the loop is the tracker's, too
        await agent.beat()
        await asyncio.sleep(0.3)
        assert app.tracking.registry.nodes[1].connected
        assert agent.closed is None


def test_ten_seconds_of_silence_are_a_loss() -> None:
    app = TrackerApp(TrackerSettings(listen="127.0.0.1:0"))
    assert app.tracking.registry._settings.expiry_s == SILENCE_S == 10.0  # docs/protocol.md


async def test_leaving_is_at_once() -> None:
    async with tracker() as app, FakeAgent(1).member(app.address) as agent:
        await agent.enter(X, 4)
        await agent.send(m.Leaving())
        await agent.ask("status")
        assert not app.tracking.registry.nodes
        assert not app.tracking.swarms


async def test_a_slow_reader_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_BEHIND_BYTES", 100_000)
    async with tracker() as app, FakeAgent(1).member(app.address) as agent:
        (live,) = app.members._live.values()
        for _ in range(4):
            live.queue_message(m.encode(m.Answer(1, b"x" * 30_000)))
        async with asyncio.timeout(5):  # silence would end it after 15 s
            await agent.wait_closed()


async def test_small_messages_do_not_overtake_large_ones() -> None:
    async with tracker() as app, FakeAgent(1).member(app.address) as agent:
        (live,) = app.members._live.values()
        sizes = [10, 100_000, 10, 15_000, 10, 3_000_000, 10, 10]
        for number, size in enumerate(sizes):
            live.queue_message(m.encode(m.Answer(number, b"x" * size)), later=number == 2)
        await agent.until(lambda: sum(isinstance(x, m.Answer) for x in agent.mail) == len(sizes))
        assert [x.id for x in agent.mail if isinstance(x, m.Answer)] == list(range(len(sizes)))
        assert live._behind == 0


async def test_a_closed_connection_gets_no_more_messages() -> None:
    async with tracker() as app, FakeAgent(1).member(app.address) as agent:
        (live,) = app.members._live.values()
        assert live._transport is not None
        live._transport.abort()
        live.queue_message(m.encode(m.Answer(1, b"x")))
        live.queue_message(m.encode(m.Answer(2, b"x")), later=True)
        live.rouse()
        async with asyncio.timeout(5):
            await agent.wait_closed()
            await live.wait_ended()
        live.rouse()
        assert not any(isinstance(x, m.Answer) for x in agent.mail)


async def test_a_member_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SEND_S", 0.2)
    async with tracker() as app, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"http://{app.address}/v1/member") as socket:
            agent = FakeAgent(1)
            agent._socket = socket
            await agent.handshake(socket)
            await agent.announce()
            await socket.receive()
            (live,) = app.members._live.values()
            answer = m.encode(m.Answer(1, b"x" * 8000))
            for _ in range(4000):  # more than all buffers on the way
                live.queue_message(answer)
            async with asyncio.timeout(30):
                await live.wait_ended()
            assert live._behind > 0


async def test_a_change_of_a_large_swarm_is_sent_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "ROUSED", 2)
    agents = [FakeAgent(n) for n in range(1, 10)]
    async with tracker() as app, contextlib.AsyncExitStack() as stack:
        for agent in agents:
            agent.read_s = -1
            await stack.enter_async_context(agent.member(app.address))
            await agent.enter(X, 4)
        everybody = {agent.node for agent in agents}
        for agent in agents:
            await agent.until(lambda a=agent: a.known.get(X) == everybody)  # type: ignore[misc]
            versions = [x.version for x in agent.mail if isinstance(x, m.Swarm) and x.digest == X]
            assert versions == sorted(versions)
        assert not app.members._asleep


async def test_a_flood_is_slowed_down_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BURST", 20.0)
    monkeypatch.setattr(connection, "RATE", 400.0)
    loop = asyncio.get_running_loop()
    async with tracker() as app, FakeAgent(1).member(app.address) as agent:
        began = loop.time()
        for _ in range(100):
            await agent.send(m.Heartbeat())
        await agent.ask("status")
        assert loop.time() - began > 0.1


async def test_too_many_questions() -> None:
    async with tracker() as app, FakeAgent(1).member(app.address) as agent:
        for number in range(200):
            await agent.send(m.Ask(number, "status"))

        def ends() -> list[int]:
            return [x.id for x in agent.mail if isinstance(x, m.Answer | m.Refusal)]

        await agent.until(lambda: len(ends()) == 200)
        assert sorted(ends()) == list(range(200))


async def test_an_ordered_stop_says_goodbye() -> None:
    async with contextlib.AsyncExitStack() as outer:
        async with tracker() as app:
            agent = await outer.enter_async_context(FakeAgent(1).member(app.address))
        assert await agent.wait_closed() == aiohttp.WSCloseCode.GOING_AWAY


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"listen": "0.0.0.0:0"}, UsageError), ({"listen": "nonsense"}, UsageError),
     ({"origin": "ftp://x"}, UsageError), ({"origin": "s3://key:secret@bucket/x"}, UsageError),
     ({"leases_in_flight": 0}, UsageError),
     ({"cluster_key_file": "/nonexistent"}, NotAllowed)],
)  # fmt: skip
def test_settings_that_cannot_work(settings: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        TrackerApp(msgspec.convert(settings, TrackerSettings))
    assert "secret@" not in str(caught.value)
