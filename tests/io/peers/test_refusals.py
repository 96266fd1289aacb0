"""Real nodes on loopback: who is told busy, models that aren't there or go, nodes that are dropped or silent."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

from p2pcache.core.settings import UploadSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.settings import FULL
from p2pcache.errors import NotFound
from p2pcache.io.peers.protocol.limits import PeerLimits
from tests.io.peers.kit import QUICK, Node, Port, idle, node, uploading
from tests.io.peers.pairs import DIGEST, MODEL, RUNS, dialled, served

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


async def test_chunks_that_went_are_one_line_in_the_log_not_one_each(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours ask for all of a large file while it is proved again."""

    def changed(chunk: int) -> NoReturn:
        raise NotFound("the file was changed on disk")

    caplog.set_level("DEBUG")
    async with node(1) as server, node(2) as client:
        store, port = server.swarm(MODEL, full=True).store, client.swarm(MODEL)
        await dialled(client, port, server)
        monkeypatch.setattr(store, "source", changed)
        for number, pause_s in enumerate((600.0, 600.0, 0.0)):
            monkeypatch.setattr("p2pcache.io.peers.serve.uploads.UNSERVED_EACH_S", pause_s)
            client.net.request(DIGEST, number, 1, LONG_RUNS[0])
            assert await port.end(number) is Outcome.REFUSED
    levels = [r.levelname for r in caplog.records if "can't be served" in r.getMessage()]
    assert levels == ["INFO", "DEBUG", "INFO"], "and again when the pause is over"


async def test_a_model_that_is_not_there_fails_the_dial() -> None:
    async with node(1) as server, node(2) as client:
        port = client.swarm(MODEL)
        client.net.dial(DIGEST, 1, server.address)
        await port.heard("failed", 1)
        server.swarm(MODEL, full=True)
        await dialled(client, port, server)  # on a new stream of the same connection


async def test_a_removed_model_ends_on_both_sides() -> None:
    async with served() as (server, client, port):
        server.net.remove_swarm(DIGEST)
        await port.heard("left", 1)
        client.net.request(DIGEST, 1, 1, 0)
        assert await port.end(1) is Outcome.LOST
        client.net.remove_swarm(DIGEST)
        client.net.remove_swarm(DIGEST)


async def test_a_model_that_we_remove_ends_its_requests() -> None:
    async with served(up=100_000) as (server, client, port):
        client.net.request(DIGEST, 1, 1, RUNS - 1)
        await uploading(server)
        client.net.remove_swarm(DIGEST)
        assert await port.end(1) is Outcome.CANCELLED
        await idle(server)


async def test_a_node_that_sent_wrong_bytes_is_asked_nothing_and_still_served() -> None:
    """Refused by everybody it would read a copy of its own from storage, beside the swarm."""
    async with node(1) as liar, node(2) as honest:
        lies, truth = liar.swarm(MODEL, full=True), honest.swarm(MODEL, full=True)
        ours, theirs = MODEL.layout.run_chunks(0), MODEL.layout.run_chunks(1)
        lies.store.have, truth.store.have = set(theirs), set(ours)
        lies.store.file.truncate(0)
        lies.store.file.truncate(lies.store.offsets[-1])
        await dialled(honest, truth, liar, 0b10)
        await dialled(liar, lies, honest, 0b01)
        honest.net.request(DIGEST, 1, 1, 1)
        assert await truth.end(1) is Outcome.MISMATCH
        await truth.heard("left", 1)
        honest.net.dial(DIGEST, 1, liar.address)
        await truth.heard("failed", 1)
        liar.net.request(DIGEST, 1, 2, 0)
        assert await lies.end(1) is Outcome.DONE, "on the connection that it has"
        liar.net.remove_swarm(DIGEST)
        await idle(honest)
        lies.told.clear()
        lies.store.have.clear()
        liar.net.add_swarm(lies)
        await dialled(liar, lies, honest, 0b01)
        liar.net.request(DIGEST, 2, 2, 0)
        assert await lies.end(2) is Outcome.DONE, "and on a new one"


async def test_a_node_that_broke_a_rule_is_refused_for_a_while() -> None:
    async with served(limits=QUICK) as (server, client, port):
        server.net._hub.on_violation(2, "sent a frame of no kind")
        await port.heard("left", 1)
        client.net.dial(DIGEST, 1, server.address)
        await port.heard("failed", 1)
        await asyncio.sleep(QUICK.ban_s)
        port.told.clear()
        await dialled(client, port, server)


@pytest.mark.slow
async def test_a_quiet_connection_is_kept_and_a_dead_one_is_not() -> None:
    limits = PeerLimits(ping_s=0.1, idle_s=1.5)
    async with served(limits=limits) as (server, client, _):
        await asyncio.sleep(2.0)
        assert server.net.stats.connections == 1
        client.net._hub.receiver.unwatch(client.net._hub.requesting[1].connection)  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            while server.net.stats.connections:
                await asyncio.sleep(0.02)


async def test_our_own_pause_is_not_the_peers_silence() -> None:
    """A loop that stood still for longer than the deadline hears what came meanwhile first."""
    limits = PeerLimits(ping_s=0.1, idle_s=1.0)
    async with served(limits=limits) as (server, _, _):
        serving = server.net._hub.serving[2]
        time.sleep(2.5)
        await asyncio.sleep(0.3)
        assert server.net._hub.serving.get(2) is serving


def test_a_dead_peer_is_noticed_within_ten_seconds() -> None:
    limits = PeerLimits()
    assert limits.idle_s == 10.0  # docs/protocol.md
    assert 2 * limits.ping_s < limits.idle_s  # one PING may be lost, or answered late
