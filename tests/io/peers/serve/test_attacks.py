"""A hostile requester against a real node: dropped, never a crash, a hang or a leak.

After each attack the node must still serve an honest peer (`still_serves`).
"""

import asyncio
import resource
import socket
import struct
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2pcache.core import bitset
from p2pcache.core.protocol import handshake
from p2pcache.core.protocol.handshake import Challenge, Secret
from p2pcache.core.settings import UploadSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.limits import PeerLimits
from p2pcache.io.peers.protocol.wire import Kind
from p2pcache.io.peers.serve import listener
from tests.io.peers import raw
from tests.io.peers.kit import KEY, QUICK, Node, idle, make_model, node, open_files, uploading

MODEL = make_model([262_144, 262_144, 100, 300_000, 50_000, 50_000])
LAYOUT = MODEL.layout


@pytest.fixture
async def server() -> AsyncIterator[Node]:
    async with node(1, limits=QUICK) as one:
        one.swarm(MODEL, full=True)
        yield one


async def still_serves(server: Node, number: int = 999) -> None:
    async with node(number) as honest:
        port = honest.swarm(MODEL)
        honest.net.dial(LAYOUT.digest, server.number, server.address)
        await port.until(lambda: ("joined", 1, (1 << LAYOUT.run_count) - 1) in port.told)
        tries = 0
        while port.wants() and tries < 100:
            tries += 1
            run = bitset.first(~port.have_runs())
            honest.net.request(LAYOUT.digest, tries, server.number, run)
            assert await port.end(tries) in (Outcome.DONE, Outcome.BUSY)
        assert not port.wants()


# -- handshake ------------------------------------------------------------------------------------


async def test_a_wrong_key_is_turned_away(server: Node) -> None:
    async with await raw.challenged(server) as peer:
        await peer.send(raw.hello(peer.challenge, 7, Secret(b"x" * 32)))
        assert Kind.WELCOME not in await peer.is_dropped()
    await still_serves(server, 7)  # who only claimed to be 7 doesn't get 7 banned


async def test_a_replayed_hello_is_worthless(server: Node) -> None:
    async with await raw.challenged(server) as first:
        recorded = raw.hello(first.challenge, 7)
        await first.send(recorded)
        await first.frame(Kind.WELCOME)
    async with await raw.challenged(server) as second:
        await second.send(recorded)
        assert Kind.WELCOME not in await second.is_dropped()
    await still_serves(server)


async def test_a_downgraded_version_list_is_noticed(server: Node) -> None:
    async with await raw.challenged(server) as peer:
        doctored = Challenge(peer.challenge.nonce, (*handshake.VERSIONS, 0))
        await peer.send(raw.hello(doctored, 7))
        assert Kind.WELCOME not in await peer.is_dropped()
    await still_serves(server)


@pytest.mark.parametrize("number", [0, 1, -5, 1 << 63])
async def test_impossible_node_ids(server: Node, number: int) -> None:
    async with await raw.challenged(server) as peer:
        said = handshake.Hello(raw.NONCE, number, "peer", 1, b"")
        proof = handshake._client_proof(KEY.key, peer.challenge, said)
        said = msgspec.structs.replace(said, proof=proof)
        await peer.send(wire.greeting(Kind.HELLO, said))
        assert Kind.WELCOME not in await peer.is_dropped()
    await still_serves(server)


async def test_silence_and_slow_hellos_run_into_the_deadline(server: Node) -> None:
    async with await raw.challenged(server) as silent, await raw.challenged(server) as slow:

        async def drip() -> None:
            for byte in raw.hello(slow.challenge, 7):
                await slow.send(bytes((byte,)))
                await asyncio.sleep(0.05)

        dripping = asyncio.ensure_future(drip())  # noqa: TID251
        await silent.is_dropped()
        await slow.is_dropped()
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
    await still_serves(server)


async def test_frames_before_the_handshake_is_over(server: Node) -> None:
    for early in (
        raw.join(MODEL),
        wire.pack(Kind.PING),
        wire.pack(Kind.HELLO, payload=b"x" * 1025),
    ):
        async with await raw.challenged(server) as peer:
            await peer.send(early)
            assert Kind.WELCOME not in await peer.is_dropped()
    await still_serves(server)


async def test_a_thousand_connections_that_say_nothing(server: Node) -> None:
    before = open_files()
    sockets = []
    for _ in range(1000):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(server.where)
        sockets.append(sock)
        if len(sockets) % 50 == 0:
            await asyncio.sleep(0)
    await still_serves(server)
    async with asyncio.timeout(30):
        while open_files() > before + 2 + len(sockets) or server.net.stats.connections:
            await asyncio.sleep(0.05)
    for sock in sockets:
        sock.close()
    assert open_files() <= before + 2


async def test_out_of_descriptors_the_listener_waits_instead_of_spinning(
    server: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "ACCEPT_AGAIN_S", 0.1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(server.where) as waiting:  # in the backlog: the loop is here
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
        began = time.monotonic()
        try:
            await asyncio.sleep(0.25)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        refusals = [r for r in caplog.records if "can't accept" in r.message]
        assert 1 <= len(refusals) <= 2 + (time.monotonic() - began) / 0.1
        await asyncio.sleep(0.1)
        await still_serves(server)


# -- frames ---------------------------------------------------------------------------------------

BAD_FRAMES = {
    "unknown type": wire.pack(Kind.PING).replace(b"\x0d", b"\xee", 1),
    "type 0": b"\0" * 16,
    "data to a server": wire.data_header(0, 1, 0, 100),
    "welcome again": wire.pack(Kind.WELCOME),
    "too long": wire.HEADER.pack(Kind.HAVE, 0, 0, 0, 0, 256 * 1024 + 1),
    "huge": wire.HEADER.pack(Kind.JOIN, 0, 0, 0, 0, 0xFFFFFFFF),
    "payload where none may be": wire.HEADER.pack(Kind.PING, 0, 0, 0, 0, 1),
    "stream never joined": wire.request(9, 1, 0, 1),
    "have on no stream": wire.have(9, 1, 8, 0),
    "leave of no stream": wire.pack(Kind.LEAVE, stream=9),
    "stream joined twice": raw.join(MODEL),
    "empty join": wire.pack(Kind.JOIN, stream=1),
    "join with half a bitmap": wire.pack(Kind.JOIN, stream=1, a=800, payload=bytes(34)),
    "join with a bit too many": wire.pack(Kind.JOIN, stream=1, a=1, payload=bytes(33) + b"\xff"),
    "join with 4 billion runs": wire.pack(Kind.JOIN, stream=1, a=0xFFFFFFFF, payload=bytes(40)),
    "join with a wild address": wire.pack(
        Kind.JOIN, stream=1, a=0, payload=bytes(32) + b"\x02\xff\xfe"
    ),
    "join with other runs": wire.join(
        1, wire.Join(LAYOUT.digest, "", LAYOUT.run_count + 1, 0, True)
    ),
    "have beyond the model": wire.pack(Kind.HAVE, b=1, payload=struct.pack("<I", LAYOUT.run_count)),
    "have with a wrong count": wire.pack(Kind.HAVE, b=2, payload=struct.pack("<I", 0)),
    "have with a wrong bitmap": wire.pack(Kind.HAVE, flags=1, payload=b"\xff" * 9),
    "request beyond the model": wire.request(0, 1, 6, 1),
    "request of 4 billion": wire.request(0, 1, 0, 0xFFFFFFFF),
    "request of nothing": wire.request(0, 1, 0, 0),
    "request across runs": wire.request(0, 1, 0, 6),
    "request without a count": wire.pack(Kind.REQUEST, a=1, b=0),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_bad_frames_are_dropped_and_their_sender_refused(server: Node, name: str) -> None:
    async with await raw.joined(server, MODEL, 7) as peer:
        await peer.send(BAD_FRAMES[name])
        assert Kind.DATA not in await peer.is_dropped()
    async with await raw.challenged(server) as again:
        await again.send(raw.hello(again.challenge, 7))
        assert await again.is_dropped() in ([Kind.BYE], [])
    assert server.net.stats.violations == 1
    assert server.net.load == 0


async def test_a_reused_request_number(server: Node) -> None:
    async with await raw.joined(server, MODEL, 7) as peer:
        await peer.send(*[wire.request(0, 1, 0, 1)] * 3)
        await peer.is_dropped()
    await still_serves(server)


async def test_an_unknown_model_is_just_not_served(server: Node) -> None:
    other = make_model([10], seed=9)
    async with await raw.member(server, 7) as peer:
        await peer.send(raw.join(other, stream=3))
        assert (await peer.frame(Kind.JOINED)).flags == wire.FLAG
        await peer.send(wire.request(3, 5, 0, 1))
        assert (await peer.frame(Kind.REFUSED)).a == 5
        await peer.send(raw.join(MODEL, stream=4))
        assert (await peer.frame(Kind.JOINED)).flags == 0


async def test_too_many_streams() -> None:
    async with node(1, limits=PeerLimits(streams=3)) as server:
        server.swarm(MODEL, full=True)
        async with await raw.member(server, 7) as peer:
            await peer.send(*[raw.join(MODEL, stream=i) for i in range(4)])
            assert (await peer.is_dropped()).count(Kind.JOINED) == 3


async def test_a_chunk_that_is_not_here_is_refused() -> None:
    async with node(1) as server:
        server.swarm(MODEL)
        async with await raw.joined(server, MODEL, 7) as peer:
            await peer.send(wire.request(0, 5, 0, 1))
            assert (await peer.frame()).kind == Kind.REFUSED


async def test_a_chunk_that_vanishes_is_refused(server: Node) -> None:
    port = server.ports[0]
    port.have_runs = lambda: 1  # type: ignore[method-assign] # what the store lost meanwhile
    port.store.have.clear()
    async with await raw.joined(server, MODEL, 7) as peer:
        await peer.send(wire.request(0, 5, 0, 1))
        assert (await peer.frame()).kind == Kind.REFUSED
        await peer.send(wire.pack(Kind.PING, a=77))
        assert (await peer.frame(Kind.PING)).a == 77


# -- floods ---------------------------------------------------------------------------------------


async def test_strangers_of_one_address_end_no_handshake_of_another() -> None:
    async with node(1, limits=PeerLimits(half_open=6)) as server:
        server.swarm(MODEL, full=True)
        async with await raw.challenged(server) as slow:
            crowd = []
            for _ in range(30):
                crowd.append(
                    socket.create_connection(server.where, source_address=("127.0.0.9", 0))
                )
                await asyncio.sleep(0.01)
            await slow.send(raw.hello(slow.challenge, 7))
            await slow.frame(Kind.WELCOME)
            for one in crowd:
                one.close()
        await still_serves(server)


async def test_a_flood_of_haves(server: Node) -> None:
    async with await raw.joined(server, MODEL, 7) as peer:
        await peer.send(wire.have(0, 1, LAYOUT.run_count, 0) * 3000)
        await peer.is_dropped()
    await still_serves(server)


async def test_a_flood_of_requests_gets_busy_then_is_dropped() -> None:
    big = make_model([8 << 20], seed=3)
    async with node(1, uploads=UploadSettings(slots=1)) as server:
        server.swarm(MODEL, full=True)
        server.swarm(big, full=True)
        async with (
            await raw.joined(server, big, 8) as served,
            await raw.joined(server, MODEL, 7) as peer,
        ):
            served.writer.transport.pause_reading()  # type: ignore[attr-defined] # it keeps the slot
            await served.send(wire.request(0, 0, 0, 1))
            await uploading(server)
            await peer.send(*[wire.request(0, i, 0, 1) for i in range(3000)])
            await peer.is_dropped()
        assert server.net.stats.busy > 500  # a reset connection may lose most of those answers
        await still_serves(server)


async def test_a_requester_that_never_reads_loses_its_slot(server: Node) -> None:
    big = make_model([8 << 20] * 4, seed=3)
    server.swarm(big, full=True)
    async with await raw.joined(server, big, 7) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(*[wire.request(0, i, i, 1) for i in range(4)])
        await uploading(server)
        await idle(server)
        await still_serves(server)


async def test_pings_whose_answers_are_never_read() -> None:
    limits = PeerLimits(frames_per_s=1e9, frames_burst=1e9, outbox_bytes=100_000)
    async with node(1, limits=limits) as server:
        server.swarm(MODEL, full=True)
        peer = await raw.member(server, 7, window=4096)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.writer.transport.set_write_buffer_limits(1 << 16)
        pings = wire.pack(Kind.PING) * 4096
        async with asyncio.timeout(30):
            while server.net.stats.connections:
                peer.writer.write(pings)
                await asyncio.sleep(0.01)
                if peer.writer.is_closing():
                    break
        peer.writer.transport.abort()
        await still_serves(server)


# -- garbage --------------------------------------------------------------------------------------


async def test_garbage_of_every_kind(server: Node) -> None:
    @settings(
        max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(
        garbage=st.lists(
            st.one_of(
                st.binary(min_size=1, max_size=200),
                st.builds(
                    wire.HEADER.pack, st.integers(0, 16), st.integers(0, 3), st.integers(0, 2),
                    st.integers(0, 9), st.integers(0, 9), st.integers(0, 9),
                ),
            ),
            min_size=1, max_size=8,
        ),
        greeted=st.booleans(),
    )  # fmt: skip
    def attack(garbage: list[bytes], greeted: bool) -> None:
        number = 10 + counter[0]
        counter[0] += 1
        attacks.append((number, b"".join(garbage), greeted))

    counter, attacks = [0], list[tuple[int, bytes, bool]]()
    attack()
    for number, garbage, greeted in attacks:
        peer = await (raw.joined(server, MODEL, number) if greeted else raw.connect(server))
        await peer.send(garbage)
        peer.writer.write_eof()
        await peer.is_dropped()
        await peer.close()
    async with asyncio.timeout(30):
        while server.net.stats.connections or server.net.load:
            await asyncio.sleep(0.02)
    await still_serves(server, 5000)
