"""Real nodes on loopback: join, request, have, busy, leave, caps, the orderly end, and leaks."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from p2pcache.core import bitset
from p2pcache.core.settings import UploadSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.settings import FULL
from p2pcache.errors import UsageError
from p2pcache.io.peers.protocol.limits import PeerLimits
from tests.io.peers.kit import QUICK, Model, Node, Port, make_model, node, open_files, uploading

MIXED = [1, 5, 300_000, 262_144, 262_144, 70_000, 12, 13, 1_000_000]
MODEL = make_model(MIXED)
DIGEST = MODEL.layout.digest
RUNS = MODEL.layout.run_count
EVERYTHING = bitset.full(RUNS)


async def dialled(client: Node, port: Port, server: Node, have: int = EVERYTHING) -> None:
    client.net.dial(port.layout.digest, server.number, server.address)
    await port.heard("joined", server.number, have)


async def fetch(client: Node, port: Port, server: Node) -> None:
    for run in range(port.layout.run_count):
        client.net.request(port.layout.digest, run, server.number, run)
    for run in range(port.layout.run_count):
        assert await port.end(run) is Outcome.DONE


def check(model: Model, port: Port) -> None:
    assert port.store.read() == b"".join(model.chunks)
    assert not port.wants()
    assert port.store.begun == port.store.finished + port.store.aborted


async def test_everything_comes_over() -> None:
    async with node(1) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await dialled(client, port, server)
        await fetch(client, port, server)
        check(MODEL, port)
        assert client.net.stats.bytes_received == sum(MIXED)
        # Counted by the sending thread, which may come to it after the bytes came here.
        async with asyncio.timeout(10):
            while server.net.stats.bytes_served < sum(MIXED):
                await asyncio.sleep(0.01)
        assert server.net.stats.bytes_served == sum(MIXED)
        client.net.request(DIGEST, 1000, 1, 0)
        assert await port.end(1000) is Outcome.DONE  # nothing is missing: no bytes needed
        assert port.ends[1000] == (Outcome.DONE, 0)


def test_it_works_on_uvloop_too() -> None:
    uvloop.run(test_everything_comes_over())
    uvloop.run(test_a_stopping_node_finishes_its_uploads())


async def in_pulses() -> None:
    model = make_model([300_000] * 40)
    digest = model.layout.digest
    async with node(1) as server, node(2) as client:
        server.swarm(model, full=True)
        port = client.swarm(model)
        server.swarm(make_model([300_000] * 34, seed=2)).pace = 0.1  # the server pulls, too
        port.pace = 0.1
        for one in (server, client):
            assert one.net._hub.pulse_s() == 0.05
        await dialled(client, port, server, bitset.full(model.layout.run_count))
        await fetch(client, port, server)
        check(model, port)
        assert client.net._hub.pulse_s() == 0.0  # nothing is pulled any more
        await asyncio.sleep(0.2)
        client.net.announce(digest, 1)
        client.net.request(digest, 1000, 1, 0)
        assert await port.end(1000) is Outcome.DONE


async def test_all_goes_on_in_pulses() -> None:
    await in_pulses()


def test_all_goes_on_in_pulses_of_uvloop() -> None:
    uvloop.run(in_pulses())


async def test_ten_thousand_small_files_in_a_few_requests() -> None:
    model = make_model([40] * 10_000)
    assert model.layout.run_count < 10
    async with node(1) as server, node(2) as client:
        server.swarm(model, full=True)
        port = client.swarm(model)
        await dialled(client, port, server, bitset.full(model.layout.run_count))
        await fetch(client, port, server)
        check(model, port)


async def test_only_missing_chunks_are_asked_for() -> None:
    model = make_model([1000] * 20)
    async with node(1) as server, node(2) as client:
        server.swarm(model, full=True)
        port = client.swarm(model)
        for chunk in (0, 3, 4, 11):
            port.store.have.add(chunk)
        await dialled(client, port, server, 1)
        client.net.request(model.layout.digest, 1, 1, 0)
        assert await port.end(1) is Outcome.DONE
        assert port.ends[1] == (Outcome.DONE, 16_000)


async def test_two_models_share_a_connection_and_each_way_has_its_own() -> None:
    other = make_model([200_000] * 4, seed=2)
    async with node(1) as left, node(2) as right:
        left_full, left_empty = left.swarm(MODEL, full=True), left.swarm(other)
        right_empty, right_full = right.swarm(MODEL), right.swarm(other, full=True)
        await dialled(right, right_empty, left)
        await dialled(right, right_full, left, 0)
        await dialled(left, left_empty, right, bitset.full(other.layout.run_count))
        assert left.net.stats.connections == right.net.stats.connections == 2
        await left_full.heard("inbound", 2, right.address, True)
        await asyncio.gather(fetch(right, right_empty, left), fetch(left, left_empty, right))
        check(MODEL, right_empty)
        check(other, left_empty)


async def test_dialling_twice_joins_once() -> None:
    async with node(1) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        client.net.dial(DIGEST, 1, server.address)
        await dialled(client, port, server)
        client.net.dial(DIGEST, 1, server.address)
        await fetch(client, port, server)
        assert [told[0] for told in port.told].count("joined") == 1
        assert server.net.stats.connections == 1


# -- have -----------------------------------------------------------------------------------------


async def test_haves_go_to_nodes_that_lack_runs_on_one_connection_each() -> None:
    async with node(1) as a, node(2) as b, node(3) as c:
        pa, pb, pc = a.swarm(MODEL), b.swarm(MODEL), c.swarm(MODEL, full=True)
        await dialled(a, pa, b, 0)  # a requests from b: b's haves come as server
        await dialled(a, pa, c)
        b.net.announce(DIGEST, 0b101)
        await pa.heard("has", 2, 0b101)
        a.net.announce(DIGEST, 0b10)  # as requester; c has everything and isn't told
        await pb.heard("has", 1, 0b10)
        await dialled(b, pb, a, 0b10)  # JOINED says 0; what it announced before counts too
        b.net.announce(DIGEST, 0b1000)  # now as requester
        await pa.heard("has", 2, 0b1000)
        assert not [told for told in pc.told if told[0] == "has"]


async def test_after_a_break_the_other_connection_repeats_all_haves() -> None:
    async with node(1) as a, node(2) as b:
        pa, pb = a.swarm(MODEL), b.swarm(MODEL)
        await dialled(a, pa, b, 0)
        await dialled(b, pb, a, 0)
        pb.store.have.update(range(len(MIXED)))
        # b loses the connection on which it requests and announces.
        requester = b.net._hub.requesting[1]
        requester.close(Outcome.LOST, "the cable was pulled")
        await pa.heard("has", 2, EVERYTHING)


# -- refusals -------------------------------------------------------------------------------------


LONG_RUNS = [r for r in range(RUNS) if MODEL.layout.run_bytes[r] > 200_000][:2]


@asynccontextmanager
async def one_slot_for_two() -> AsyncIterator[tuple[Node, Node, Port, Node, Port]]:
    """A slow server that has all of the model and sends one upload at once, and two requesters with their ports."""
    uploads = UploadSettings(slots=1)
    async with node(1, uploads=uploads, up=1_000_000) as server, node(2) as one, node(3) as other:
        server.swarm(MODEL, full=True)
        ours, theirs = one.swarm(MODEL), other.swarm(MODEL)
        await dialled(one, ours, server)
        await dialled(other, theirs, server)
        yield server, one, ours, other, theirs


async def test_busy_when_slots_are_full_but_not_for_who_is_served() -> None:
    async with one_slot_for_two() as (server, one, ours, other, theirs):
        first, second = LONG_RUNS
        one.net.request(DIGEST, first, 1, first)
        one.net.request(DIGEST, second, 1, second)
        await uploading(server)
        other.net.request(DIGEST, first, 1, first)
        assert await theirs.end(first) is Outcome.BUSY
        one.net.cancel(DIGEST, second)
        assert await ours.end(second) is Outcome.CANCELLED


async def test_a_requester_that_got_busy_hears_of_a_free_slot() -> None:
    async with one_slot_for_two() as (server, one, ours, other, theirs):
        first, second = LONG_RUNS
        one.net.request(DIGEST, 7, 1, first)
        await uploading(server)
        other.net.request(DIGEST, 8, 1, second)
        assert await theirs.end(8) is Outcome.BUSY
        assert 0 < theirs.waited_s[8] < 2, "what the question and its answer took"
        assert await ours.end(7) is Outcome.DONE
        assert 0 < ours.waited_s[7] < 2
        await theirs.heard("has", 1, 0)
        other.net.request(DIGEST, 9, 1, second)
        assert await theirs.end(9) is Outcome.DONE


async def test_a_requester_that_got_busy_again_hears_that_another_one_was_served() -> None:
    async with one_slot_for_two() as (server, one, _, other, theirs):
        first, second = LONG_RUNS
        for run in (first, second):
            one.net.request(DIGEST, run, 1, run)
        await uploading(server)
        for number in (8, 9):
            other.net.request(DIGEST, number, 1, second)
            assert await theirs.end(number) is Outcome.BUSY
        await theirs.heard("has", 1, 0)
        assert theirs.recalls == [FULL], (
            "the slot was for the next request of the one that is served"
        )


async def test_a_model_that_is_not_there_fails_the_dial() -> None:
    async with node(1) as server, node(2) as client:
        port = client.swarm(MODEL)
        client.net.dial(DIGEST, 1, server.address)
        await port.heard("failed", 1)
        server.swarm(MODEL, full=True)
        await dialled(client, port, server)  # on a new stream of the same connection


async def test_a_removed_model_ends_on_both_sides() -> None:
    async with node(1) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await dialled(client, port, server)
        server.net.remove_swarm(DIGEST)
        await port.heard("left", 1)
        client.net.request(DIGEST, 1, 1, 0)
        assert await port.end(1) is Outcome.LOST
        client.net.remove_swarm(DIGEST)
        client.net.remove_swarm(DIGEST)


async def test_a_model_that_we_remove_ends_its_requests() -> None:
    async with node(1, up=100_000) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await dialled(client, port, server)
        client.net.request(DIGEST, 1, 1, RUNS - 1)
        await uploading(server)
        client.net.remove_swarm(DIGEST)
        assert await port.end(1) is Outcome.CANCELLED
        async with asyncio.timeout(30):
            while server.net.load:
                await asyncio.sleep(0.02)


async def test_a_dropped_node_is_refused_for_a_while() -> None:
    async with node(1, limits=QUICK) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await dialled(client, port, server)
        server.net.drop(2, "sent bytes that don't match")
        await port.heard("left", 1)
        client.net.dial(DIGEST, 1, server.address)
        await port.heard("failed", 1)
        await asyncio.sleep(QUICK.ban_s)
        port.told.clear()
        await dialled(client, port, server)


@pytest.mark.slow
async def test_a_quiet_connection_is_kept_and_a_dead_one_is_not() -> None:
    limits = PeerLimits(ping_s=0.1, idle_s=1.5)
    async with node(1, limits=limits) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await dialled(client, port, server)
        await asyncio.sleep(2.0)
        assert server.net.stats.connections == 1
        client.net._hub.receiver.unwatch(client.net._hub.requesting[1].connection)  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            while server.net.stats.connections:
                await asyncio.sleep(0.02)


async def test_our_own_pause_is_not_the_peers_silence() -> None:
    """A loop that stood still for longer than the deadline hears what came meanwhile first."""
    limits = PeerLimits(ping_s=0.1, idle_s=1.0)
    async with node(1, limits=limits) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await dialled(client, port, server)
        serving = server.net._hub.serving[2]
        time.sleep(2.5)
        await asyncio.sleep(0.3)
        assert server.net._hub.serving.get(2) is serving


def test_a_dead_peer_is_noticed_within_ten_seconds() -> None:
    limits = PeerLimits()
    assert limits.idle_s == 10.0  # docs/protocol.md
    assert 2 * limits.ping_s < limits.idle_s  # one PING may be lost, or answered late


# -- rates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("up", "down"), [(4_000_000, None), (None, 4_000_000)])
async def test_a_cap_holds_and_is_used(up: int | None, down: int | None) -> None:
    async with node(1, up=up) as server, node(2, down=down) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await dialled(client, port, server)
        start = time.monotonic()
        await fetch(client, port, server)
        seconds = time.monotonic() - start
        check(MODEL, port)
        # 50 ms of burst; the receiver's kernel buffers take some more. A busy machine is slower.
        assert 0.7 * sum(MIXED) / 4e6 < seconds < 20 * sum(MIXED) / 4e6


# -- the end --------------------------------------------------------------------------------------


async def test_a_stopping_node_finishes_its_uploads() -> None:
    async with node(1, up=300_000) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await dialled(client, port, server)
        client.net.request(DIGEST, 1, 1, RUNS - 1)
        await uploading(server)
        stopping = server.net.stop(drain_s=30)
        asked_late = asyncio.get_running_loop().call_later(
            0.05, client.net.request, DIGEST, 2, 1, 0
        )
        await stopping
        assert await port.end(1) is Outcome.DONE
        assert await port.end(2) is Outcome.BUSY
        await port.heard("left", 1)
        asked_late.cancel()


async def test_the_drain_has_a_limit() -> None:
    async with node(1, up=5_000) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await dialled(client, port, server)
        client.net.request(DIGEST, 1, 1, RUNS - 1)
        await uploading(server)
        start = time.monotonic()
        await server.net.stop(drain_s=0.1)
        assert time.monotonic() - start < 15
        assert await port.end(1) is Outcome.LOST


async def test_an_address_in_use() -> None:
    async with node(1) as first, node(2) as second:
        await second.net.stop()
        with pytest.raises(UsageError, match="can't listen"):
            await second.net.start(*first.where)


async def test_nothing_leaks() -> None:
    await asyncio.to_thread(time.sleep, 0)  # the loop's own helper thread stays
    before, threads = open_files(), threading.active_count()
    for _ in range(3):
        async with node(1) as server, node(2) as client:
            server.swarm(MODEL, full=True)
            port = client.swarm(MODEL)
            await dialled(client, port, server)
            client.net.request(DIGEST, 1, 1, RUNS - 1)
        assert await port.end(1) in (Outcome.LOST, Outcome.DONE)
        assert port.store.begun == port.store.finished + port.store.aborted
    assert open_files() == before
    names = [thread.name for thread in threading.enumerate()]
    assert len([n for n in names if not n.startswith("asyncio")]) <= threads, names


async def test_the_kernel_tells_how_far_a_peer_is() -> None:
    async with node(1) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        assert client.net.rtt_s(1) == 0.0  # not dialled yet
        await dialled(client, port, server)
        assert 0 < client.net.rtt_s(1) < 1.0
