"""A hostile server against a real requester: every request ends once, nothing unproved is kept."""

import asyncio
import threading
from collections.abc import AsyncIterator
from unittest import mock

import pytest

from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.swarm.events import Outcome, Source
from p2pcache.errors import NoSpace
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.wire import Kind
from tests.io.peers import raw
from tests.io.peers.kit import QUICK, FileWriter, Node, Port, make_model, node
from tests.io.peers.raw import RawPeer

MODEL = make_model([262_144, 262_144, 100, 300_000, 50_000, 50_000])
LAYOUT = MODEL.layout
DIGEST = LAYOUT.digest
EVERYTHING = (1 << LAYOUT.run_count) - 1


@pytest.fixture
async def client() -> AsyncIterator[Node]:
    async with node(2, limits=QUICK) as one:
        yield one
    for port in one.ports:
        store = port.store
        assert store.begun == store.finished + store.aborted, "a writer was left open"


async def dialled(client: Node, port: Port, address: str) -> None:
    client.net.dial(DIGEST, 1, address)
    await port.heard("joined", 1, EVERYTHING)


# -- dialling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["", "nonsense", "host:0", ":7401", "1.2.3.4:99999", "[::1]:x"])
async def test_a_bad_address_is_a_failed_dial(client: Node, address: str) -> None:
    port = client.swarm(MODEL)
    client.net.dial(DIGEST, 1, address)
    await port.heard("failed", 1)


async def test_nobody_there(client: Node) -> None:
    port = client.swarm(MODEL)
    client.net.dial(DIGEST, 1, "127.0.0.1:1")
    await port.heard("failed", 1)
    client.net.dial(DIGEST, 1, "no-such-host.invalid:7401")
    await port.until(lambda: port.told.count(("failed", 1)) == 2)


async def test_a_server_without_the_key(client: Node) -> None:
    port = client.swarm(MODEL)

    async def forge(peer: RawPeer) -> None:
        await raw.welcome(peer, 1, Secret(b"x" * 32))
        assert (await peer.frame()).kind != Kind.JOIN

    async with raw.evil_server(forge) as address:
        client.net.dial(DIGEST, 1, address)
        await port.heard("failed", 1)


async def test_another_node_answers(client: Node) -> None:
    port = client.swarm(MODEL)
    async with raw.evil_server(lambda peer: raw.serve_model(peer, MODEL, 77)) as address:
        client.net.dial(DIGEST, 1, address)
        await port.heard("failed", 1)


async def test_a_server_that_says_nothing(client: Node) -> None:
    port = client.swarm(MODEL)
    async with raw.evil_server(lambda peer: asyncio.sleep(60)) as address:
        client.net.dial(DIGEST, 1, address)
        await port.heard("failed", 1)


@pytest.mark.parametrize(
    "answer",
    [
        wire.joined(0, 800, 0, 1),
        wire.pack(Kind.JOINED, stream=9),
        wire.pack(Kind.JOINED, a=LAYOUT.run_count, payload=b"\xff" * 9),
        wire.pack(Kind.HELLO),
        wire.HEADER.pack(99, 0, 0, 0, 0, 0),
        wire.HEADER.pack(Kind.JOINED, 0, 0, 0, 0, 1 << 30),
    ],
)
async def test_a_bad_answer_to_join(client: Node, answer: bytes) -> None:
    port = client.swarm(MODEL)

    async def behave(peer: RawPeer) -> None:
        await raw.welcome(peer, 1)
        await peer.frame(Kind.JOIN)
        await peer.send(answer)
        await peer.is_dropped()

    async with raw.evil_server(behave) as address:
        client.net.dial(DIGEST, 1, address)
        await port.heard("failed", 1)
        client.net.dial(DIGEST, 1, address)  # refused for a while: fails without a connection
        await port.until(lambda: port.told.count(("failed", 1)) == 2)
    assert client.net.stats.violations == 1


# -- data -----------------------------------------------------------------------------------------


async def attacked(client: Node, port: Port, attack: list[bytes] | None, run: int = 0) -> Outcome:
    """Ask for a run of a server that answers with these bytes; None: it hangs up."""

    async def behave(peer: RawPeer) -> None:
        await raw.serve_model(peer, MODEL, 1)
        await peer.frame(Kind.REQUEST)
        if attack is None:
            return
        await peer.send(*attack)
        await peer.frame(Kind.BYE)

    async with raw.evil_server(behave) as address:
        await dialled(client, port, address)
        client.net.request(DIGEST, 5, 1, run)
        return await port.end(5)


GOOD = MODEL.chunks[0]


def payload(
    chunk: int, data: bytes, *, stream: int = 0, number: int = 0, length: int = -1
) -> bytes:
    size = len(data) if length < 0 else length
    return wire.data_header(stream, number, chunk, size) + data


@pytest.mark.parametrize(
    "attack",
    [
        payload(0, GOOD, number=9),
        payload(0, GOOD, stream=3),
        payload(1, MODEL.chunks[1]),
        payload(0, GOOD[:-1]),
        payload(0, GOOD + b"x"),
        payload(0, b"", length=0),
        payload(0, b"", length=1 << 31),
        wire.pack(Kind.BUSY, a=77),
        wire.reason(Kind.REFUSED, "no", a=77),
        wire.pack(Kind.BUSY, stream=1),
        wire.have(0, 1, LAYOUT.run_count, 0) * 1500,
    ],
)
async def test_unrequested_data_is_a_violation(client: Node, attack: bytes) -> None:
    port = client.swarm(MODEL)
    assert await attacked(client, port, [attack]) is Outcome.LOST
    await port.heard("left", 1)
    assert port.have_runs() == 0
    assert client.net.stats.violations == 1


async def test_data_twice(client: Node) -> None:
    port = client.swarm(MODEL)
    assert await attacked(client, port, [payload(0, GOOD) * 2]) in (Outcome.DONE, Outcome.LOST)
    await port.heard("left", 1)
    assert client.net.stats.violations == 1


async def test_corrupt_bytes_are_blamed_and_not_kept(client: Node) -> None:
    port = client.swarm(MODEL)
    assert await attacked(client, port, [payload(0, b"x" + GOOD[1:])]) is Outcome.MISMATCH
    await port.heard("left", 1)
    assert port.have_runs() == 0
    assert client.net.stats.mismatches == 1
    client.net.dial(DIGEST, 1, "127.0.0.1:1")
    await port.heard("failed", 1)


async def test_a_stall_inside_data(client: Node) -> None:
    port = client.swarm(MODEL)
    cut = payload(0, GOOD[:100_000], length=len(GOOD))
    assert await attacked(client, port, [cut]) is Outcome.STALLED
    await port.heard("left", 1)
    assert port.have_runs() == 0


async def test_a_drip_inside_data_is_no_stall(client: Node) -> None:
    port = client.swarm(MODEL)

    async def behave(peer: RawPeer) -> None:
        await raw.serve_model(peer, MODEL, 1)
        frame = await peer.frame(Kind.REQUEST)
        whole = raw.data(frame, 0, GOOD)
        for at in range(0, len(whole), 30_000):  # less than the reader wakes up for
            await peer.send(whole[at : at + 30_000])
            await asyncio.sleep(0.1)
        await peer.frame(Kind.BYE)

    async with raw.evil_server(behave) as address:
        await dialled(client, port, address)
        client.net.request(DIGEST, 5, 1, 0)
        assert await port.end(5) is Outcome.DONE


@pytest.mark.slow
async def test_no_answer_at_all_ends_the_request_only(client: Node) -> None:
    port = client.swarm(MODEL)
    cancelled = asyncio.Event()

    async def behave(peer: RawPeer) -> None:
        await raw.serve_model(peer, MODEL, 1)
        frame = await peer.frame(Kind.REQUEST)
        assert (await peer.frame(Kind.CANCEL)).a == frame.a
        cancelled.set()
        await peer.send(wire.reason(Kind.REFUSED, "cancelled", a=frame.a))
        await peer.send(raw.data(await peer.frame(Kind.REQUEST), 0, GOOD))
        await peer.frame(Kind.BYE)

    async with raw.evil_server(behave) as address:
        await dialled(client, port, address)
        client.net.request(DIGEST, 5, 1, 0)
        # It answers no PING either, but bytes of ours keep nothing alive: only request_s ends it.
        assert await port.end(5) is Outcome.STALLED
        await cancelled.wait()
        client.net.request(DIGEST, 6, 1, 0)
        assert await port.end(6) is Outcome.DONE


async def test_a_hangup_and_a_reset_lose_the_request(client: Node) -> None:
    port = client.swarm(MODEL)
    assert await attacked(client, port, None) is Outcome.LOST
    await port.heard("left", 1)

    async def reset(peer: RawPeer) -> None:
        await raw.serve_model(peer, MODEL, 1)
        frame = await peer.frame(Kind.REQUEST)
        await peer.send(raw.data(frame, 0, GOOD)[:50_000])
        await asyncio.sleep(0.05)
        peer.writer.transport.abort()

    port.told.clear()
    async with raw.evil_server(reset) as address:
        await dialled(client, port, address)
        client.net.request(DIGEST, 6, 1, 0)
        client.net.request(DIGEST, 7, 1, 1)
        assert await port.end(6) is Outcome.LOST
        assert await port.end(7) is Outcome.LOST
        await port.heard("left", 1)
    assert port.have_runs() == 0


# -- cancel ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 5, 16, 1000, 200_000, len(GOOD) + 16])
async def test_a_cancel_at_any_point(client: Node, sent: int) -> None:
    """The rest of the DATA is read and forgotten; the connection goes on."""
    port = client.swarm(MODEL)
    half, go_on = asyncio.Event(), asyncio.Event()

    async def behave(peer: RawPeer) -> None:
        await raw.serve_model(peer, MODEL, 1)
        whole = raw.data(await peer.frame(Kind.REQUEST), 0, GOOD)
        await peer.send(whole[:sent])
        half.set()
        await go_on.wait()
        await peer.send(whole[sent:])
        frame = await peer.frame(Kind.REQUEST)
        await peer.send(raw.data(frame, 1, MODEL.chunks[1]))
        await peer.frame(Kind.BYE)

    async with raw.evil_server(behave) as address:
        await dialled(client, port, address)
        client.net.request(DIGEST, 5, 1, 0)
        await half.wait()
        await asyncio.sleep(0.05)
        client.net.cancel(DIGEST, 5)
        client.net.cancel(DIGEST, 5)
        go_on.set()
        assert await port.end(5) is (Outcome.DONE if sent > len(GOOD) else Outcome.CANCELLED)
        client.net.request(DIGEST, 6, 1, 1)
        assert await port.end(6) is Outcome.DONE
    assert bool(port.have_runs() & 1) == (sent > len(GOOD))
    assert client.net.stats.violations == 0


async def test_a_run_whose_last_bytes_beat_the_cancel_is_told(client: Node) -> None:
    port = client.swarm(MODEL)
    finishing, go_on = threading.Event(), threading.Event()
    finish = FileWriter.finish

    def slowly(writer: FileWriter) -> bool:
        finishing.set()
        assert go_on.wait(30)
        return finish(writer)

    async def behave(peer: RawPeer) -> None:
        await raw.serve_model(peer, MODEL, 1)
        await peer.send(raw.data(await peer.frame(Kind.REQUEST), 0, GOOD))
        await peer.frame(Kind.BYE)

    async with raw.evil_server(behave) as address:
        await dialled(client, port, address)
        with mock.patch.object(FileWriter, "finish", slowly):
            client.net.request(DIGEST, 5, 1, 0)
            await asyncio.to_thread(finishing.wait, 30)
            client.net.cancel(DIGEST, 5)
            assert await port.end(5) is Outcome.CANCELLED
            go_on.set()
            await port.heard("proved", 1, Source.PEER, len(GOOD))


async def test_a_full_disk_ends_the_request_and_spares_the_peer(client: Node) -> None:
    port = client.swarm(MODEL, broken=NoSpace("the disk is full"))

    async def behave(peer: RawPeer) -> None:
        await raw.serve_model(peer, MODEL, 1)
        for _ in range(2):
            await peer.send(raw.data(await peer.frame(Kind.REQUEST), 0, GOOD))
        await peer.frame(Kind.BYE)

    async with raw.evil_server(behave) as address:
        await dialled(client, port, address)
        client.net.request(DIGEST, 5, 1, 0)
        assert await port.end(5) is Outcome.FAILED
        port.store.broken = None
        client.net.request(DIGEST, 6, 1, 0)
        assert await port.end(6) is Outcome.DONE
    assert client.net.stats.violations == 0
