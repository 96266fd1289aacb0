"""The member handshake on the tracker's WebSocket against attackers that listen, relay or pretend."""

import asyncio
import contextlib
import os
import random
from typing import cast

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
)
from p2pcache.io.tasks import Tasks
from p2pcache.tracker.members.connection import Connection
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import tracker
from tests.tracker.members.handshake_kit import KEY, answer, dialled


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


async def test_a_ping_of_a_member_that_is_gone_ends_its_connection() -> None:
    """After a pause of the tracker pings waited in sockets that others had closed, and the log got a trace of each."""

    class Gone:
        async def receive(self) -> aiohttp.WSMessage:
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    connection = Connection.__new__(Connection)
    connection._socket = cast("web.WebSocketResponse", Gone())
    await connection.read_messages(lambda _: True)
