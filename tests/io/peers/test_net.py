"""Real nodes on loopback: join, request, have, and caps."""

import asyncio
import time

import pytest
import uvloop

from p2pcache.core import bitset
from p2pcache.core.swarm.events import Outcome
from tests.io.peers.kit import Model, Node, Port, make_model, node
from tests.io.peers.pairs import DIGEST, EVERYTHING, MIXED, MODEL, dialled, served


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
    async with served() as (server, client, port):
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


async def test_the_kernel_tells_how_far_a_peer_is() -> None:
    async with node(1) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        assert client.net.rtt_s(1) == 0.0  # not dialled yet
        await dialled(client, port, server)
        assert 0 < client.net.rtt_s(1) < 1.0
