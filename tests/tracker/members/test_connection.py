"""The member handshake on the tracker's WebSocket against attackers that listen, relay or pretend."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from p2pcache.agent.tracker_link import TrackerLink
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.handshake import (
    NONCE_BYTES,
    VERSIONS,
    Challenge,
    Hello,
    Secret,
    Welcome,
    accept,
    hello,
)
from p2pcache.errors import Unreachable
from p2pcache.io.tasks import Tasks
from p2pcache.tracker.members import handshake_places
from tests.io import strangers_kit
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import tracker

KEY = Secret(b"0123456789abcdef0123456789abcdef")


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(KEY.key)
    path.chmod(0o600)
    return str(path)


@contextlib.asynccontextmanager
async def dialled(
    address: str, origin: str = "127.0.0.1"
) -> AsyncIterator[tuple[aiohttp.ClientWebSocketResponse, Challenge]]:
    connector = aiohttp.TCPConnector(local_addr=(origin, 0))
    async with aiohttp.ClientSession(connector=connector) as http:
        async with http.ws_connect(f"http://{address}/v1/member") as socket:
            yield socket, msgspec.msgpack.decode(await socket.receive_bytes(), type=Challenge)


def answer(
    challenge: Challenge, *, node: int = 5, role: str = "agent", secret: Secret = KEY
) -> Hello:
    return hello(secret, challenge, nonce=os.urandom(NONCE_BYTES), node=node, role=role)


async def refused(socket: aiohttp.ClientWebSocketResponse, said: Hello | bytes) -> str:
    data = said if isinstance(said, bytes) else msgspec.msgpack.encode(said)
    await socket.send_bytes(data)
    frame = await socket.receive(timeout=30)
    assert frame.type is aiohttp.WSMsgType.CLOSE, frame
    assert frame.data in (m.NOT_ALLOWED, aiohttp.WSCloseCode.POLICY_VIOLATION)
    return str(frame.extra)


async def test_a_replayed_hello_is_worthless(key_file: str) -> None:
    async with tracker(cluster_key_file=key_file) as app:
        async with dialled(app.address) as (socket, challenge):
            overheard = msgspec.msgpack.encode(answer(challenge))
            await socket.send_bytes(overheard)
            msgspec.msgpack.decode(await socket.receive_bytes(), type=Welcome)
        async with dialled(app.address) as (socket, challenge):
            assert "another cluster key" in await refused(socket, overheard)
        assert app.members.log.refused >= 1


async def test_no_two_challenges_are_the_same(key_file: str) -> None:
    async with tracker(cluster_key_file=key_file) as app:
        seen = set()
        for _ in range(20):
            async with dialled(app.address) as (_, challenge):
                seen.add(challenge.nonce)
        assert len(seen) == 20


async def test_a_downgraded_version_list_is_noticed(key_file: str) -> None:
    """Somebody in the middle shows the member an older list than the tracker offered."""
    async with tracker(cluster_key_file=key_file) as app:
        async with dialled(app.address) as (socket, challenge):
            older = Challenge(challenge.nonce, (*VERSIONS, 0))
            assert "another cluster key" in await refused(socket, answer(older))
        async with dialled(app.address) as (socket, challenge):
            said = answer(challenge)
            lied = Hello(said.nonce, said.node, said.role, 0, said.proof)
            assert "version" in await refused(socket, lied)


@pytest.mark.parametrize("change", ["node", "nonce", "proof", "short proof", "no proof"])
async def test_every_word_of_a_hello_is_under_the_proof(key_file: str, change: str) -> None:
    async with tracker(cluster_key_file=key_file) as app:
        async with dialled(app.address) as (socket, challenge):
            said = answer(challenge)
            forged = {
                "node": Hello(said.nonce, 6, said.role, said.version, said.proof),
                "nonce": Hello(b"n" * NONCE_BYTES, said.node, said.role, said.version, said.proof),
                "proof": Hello(said.nonce, said.node, said.role, said.version, b"p" * 32),
                "short proof": Hello(
                    said.nonce, said.node, said.role, said.version, said.proof[:8]
                ),
                "no proof": Hello(said.nonce, said.node, said.role, said.version, b""),
            }[change]
            assert await refused(socket, forged)
        assert len(app.members) == 0


async def test_a_peers_hello_doesn_t_open_the_tracker(key_file: str) -> None:
    """Who gets a member to dial him as a peer can't carry the answer to the tracker."""
    async with tracker(cluster_key_file=key_file) as app:
        async with dialled(app.address) as (socket, challenge):
            assert "role" in await refused(socket, answer(challenge, role="peer"))
        async with dialled(app.address) as (socket, challenge):
            said = answer(challenge, role="peer")
            renamed = Hello(said.nonce, said.node, "agent", said.version, said.proof)
            assert "another cluster key" in await refused(socket, renamed)


async def test_the_trackers_own_proof_sent_back(key_file: str) -> None:
    async with tracker(cluster_key_file=key_file) as app:
        async with dialled(app.address) as (first, challenge):
            said = answer(challenge)
            await first.send_bytes(msgspec.msgpack.encode(said))
            welcome = msgspec.msgpack.decode(await first.receive_bytes(), type=Welcome)
            async with dialled(app.address) as (second, _):
                mirror = Hello(said.nonce, said.node, said.role, said.version, welcome.proof)
                assert "another cluster key" in await refused(second, mirror)


async def test_leaving_speaks_for_its_sender_alone(key_file: str) -> None:
    """The message has no place for another's name; what is behind it isn't believed."""
    async with tracker(cluster_key_file=key_file) as app:
        async with (
            FakeAgent(1, KEY).member(app.address),
            FakeAgent(2, KEY).member(app.address) as liar,
        ):
            tag = msgspec.msgpack.decode(m.encode(m.Leaving()))[0]
            await liar.send_raw(msgspec.msgpack.encode([tag, 1]))
            async with asyncio.timeout(30):
                while 2 in app.tracking.registry.nodes:
                    await asyncio.sleep(0.02)
            assert set(app.tracking.registry.nodes) == {1}


class _Heard:
    """A `TrackerHandler` that notes what it is told."""

    up = False

    def announcement(self) -> m.Announce:
        return m.Announce("127.0.0.1:7009", "0.1")

    def heartbeat(self) -> m.Heartbeat:
        return m.Heartbeat()

    def tracker_up(self, settled: m.Settled) -> None:
        self.up = True

    def tracker_down(self) -> None:
        self.up = False

    def tracker_said(self, message: m.ToAgent) -> None:
        raise AssertionError("nobody may say anything before the handshake is over")


@pytest.mark.parametrize("lie", ["another key", "an echo", "straight to business"])
async def test_an_agent_tells_nothing_to_a_false_tracker(lie: str) -> None:
    heard: list[bytes] = []

    async def pretend(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        challenge = Challenge(os.urandom(NONCE_BYTES), VERSIONS)
        await socket.send_bytes(msgspec.msgpack.encode(challenge))
        said = msgspec.msgpack.decode(await socket.receive_bytes(), type=Hello)
        wrong = Secret(b"x" * 32)
        if lie == "another key":
            mine = answer(challenge, node=said.node, secret=wrong)
            welcome = accept(wrong, challenge, mine, node=1, role="agent")
            await socket.send_bytes(msgspec.msgpack.encode(welcome))
        elif lie == "an echo":
            await socket.send_bytes(msgspec.msgpack.encode(Welcome(1, said.proof)))
        else:
            await socket.send_bytes(m.encode(m.Settled(1, "", 5.0, 15.0)))
        heard.extend([frame.data async for frame in socket])
        return socket

    app = web.Application()
    app.add_routes([web.get("/v1/member", pretend)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    handler = _Heard()
    async with Tasks() as tasks:
        link = TrackerLink(
            url=f"http://127.0.0.1:{port}", node=9, secret=KEY, handler=handler, tasks=tasks,
            rng=random.Random(1),
        )  # fmt: skip
        tasks.spawn_contained(link.run(), name="link")
        async with asyncio.timeout(30):
            await link.tried.wait()
        assert not link.connected
        assert not handler.up
        assert link.last_error
    await runner.cleanup()
    assert heard == []


# -- strangers who would never be members ----------------------------------------------------------


async def test_another_sites_page_is_no_member() -> None:
    """Without a key anybody local may join; that doesn't mean every page that a browser shows here."""
    async with tracker() as app, aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await http.ws_connect(
                f"http://{app.address}/v1/member", headers={"Origin": "http://site.example"}
            )
        assert refusal.value.status == 403


async def test_a_stranger_can_t_make_the_tracker_hold_megabytes(key_file: str) -> None:
    async with tracker(cluster_key_file=key_file) as app:
        async with dialled(app.address) as (socket, _):
            with contextlib.suppress(ConnectionError):
                await socket.send_bytes(bytes(m.MAX_MESSAGE_BYTES - 100))
            frame = await socket.receive(timeout=30)
            assert frame.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)  # no goodbye


async def test_one_address_can_t_take_every_place_of_the_handshake(
    key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake_places, "EACH", 3)
    monkeypatch.setattr(handshake_places, "PLACE_S", 0.2)
    async with tracker(cluster_key_file=key_file) as app, contextlib.AsyncExitStack() as stack:
        held = [(await stack.enter_async_context(dialled(app.address)))[0] for _ in range(3)]
        await enters(app.address, "127.0.0.2")
        assert not await ended(held)
        await enters(app.address, "127.0.0.1")  # after a while, instead of the oldest of its own
        assert await ended(held) == held[:1]


async def test_quick_successive_handshakes_take_no_place_of_their_neighbours(
    key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake_places, "EACH", 3)
    monkeypatch.setattr(handshake_places, "MOST", 3)
    async with tracker(cluster_key_file=key_file) as app, contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(dialled(app.address))
        monkeypatch.setattr(handshake_places, "PLACE_S", 600.0)
        with pytest.raises(Unreachable):
            app.members._places._make_room("127.0.0.1")


async def test_strangers_of_many_addresses_make_room_the_most_crowded_first(
    key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake_places, "MOST", 6)
    monkeypatch.setattr(handshake_places, "CROWDED", 1)
    async with tracker(cluster_key_file=key_file) as app, contextlib.AsyncExitStack() as stack:
        held = [
            (await stack.enter_async_context(dialled(app.address, f"127.0.0.{host}")))[0]
            for host in (3, 4, 4, 4, 5, 5)
        ]
        await enters(app.address, "127.0.0.2")
        assert await ended(held) == held[1:2]
        assert len(app.members._places) == 5  # of those who hold theirs


async def test_a_full_house_of_lone_strangers_is_left_in_peace_for_a_while(
    key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake_places, "MOST", 3)
    async with tracker(cluster_key_file=key_file) as app, contextlib.AsyncExitStack() as stack:
        held = [
            (await stack.enter_async_context(dialled(app.address, f"127.0.0.{host}")))[0]
            for host in (3, 4, 5)
        ]
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await enters(app.address, "127.0.0.2")
        assert refusal.value.status == 503
        monkeypatch.setattr(handshake_places, "PLACE_S", 0.0)
        await enters(app.address, "127.0.0.2")
        assert await ended(held) == held[:1]


async def test_a_client_that_leaves_before_its_turn_is_no_bug(
    key_file: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handshake_places, "EACH", 1)
    monkeypatch.setattr(handshake_places, "PLACE_S", 0.3)
    async with tracker(cluster_key_file=key_file) as app, dialled(app.address):
        for _ in range(3):
            _, writer = await asyncio.open_connection(*app.address.split(":"))
            writer.write(strangers_kit.UPGRADE + b"\r\n")
            await writer.drain()
            writer.transport.abort()
        async with asyncio.timeout(20):
            while sum(app.members._places._present.values()) > 1:
                await asyncio.sleep(0.05)
    ours = [record for record in caplog.records if record.name != "aiohttp.server"]  # as io.log
    assert [record.message for record in ours if record.exc_info] == []


async def enters(address: str, origin: str) -> None:
    """Somebody with the key becomes known."""
    async with dialled(address, origin) as (socket, challenge):
        await socket.send_bytes(msgspec.msgpack.encode(answer(challenge)))
        msgspec.msgpack.decode(await socket.receive_bytes(), type=Welcome)


async def ended(
    held: list[aiohttp.ClientWebSocketResponse],
) -> list[aiohttp.ClientWebSocketResponse]:
    """Those whose connection is over."""
    over = []
    for socket in held:
        with contextlib.suppress(TimeoutError):
            if (await socket.receive(timeout=0.1)).type is not aiohttp.WSMsgType.BINARY:
                over.append(socket)
    return over


async def test_a_storm_behind_one_address_waits_for_its_turn() -> None:
    async with tracker() as app, contextlib.AsyncExitStack() as stack:
        agents = [FakeAgent(number + 1) for number in range(150)]
        entering = (stack.enter_async_context(one.member(app.address)) for one in agents)
        await asyncio.gather(*entering)  # nobody is refused
        assert len(app.members) == 150
        assert not app.members._places._present


async def test_wrong_keys_do_not_fill_the_log(
    key_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with tracker(cluster_key_file=key_file) as app:
        for _ in range(30):
            async with dialled(app.address) as (socket, challenge):
                await refused(socket, answer(challenge, secret=Secret(b"w" * 32)))
        assert app.members.log.refused == 30
    lines = [
        record for record in caplog.records
        if record.levelname == "WARNING" and "refused a member" in record.message
    ]  # fmt: skip
    assert 1 <= len(lines) <= 5
