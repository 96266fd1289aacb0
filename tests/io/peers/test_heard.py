"""What nodes said that they have: their lists, what comes later, nodes that hang up, and callers without end."""

import asyncio
from collections.abc import Callable

import pytest

from p2pcache.core import bitset
from p2pcache.io.peers import heard
from p2pcache.io.peers.heard import Heard
from p2pcache.io.peers.protocol import wire
from tests.io.peers import raw
from tests.io.peers.kit import Node, make_model, node

MODEL = make_model([100_000] * 10)
DIGEST, RUNS = MODEL.layout.digest, MODEL.layout.run_count
EVERYTHING = bitset.full(RUNS)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


def runs_of(one: Node, number: int) -> int:
    return one.net.heard(DIGEST).get(number, 0)


async def test_a_callers_list_and_what_it_has_later() -> None:
    async with node(1) as one:
        one.swarm(MODEL)
        async with await raw.member(one, 7) as caller:
            await caller.send(raw.join(MODEL, have=0b1))
            await until(lambda: runs_of(one, 7) == 0b1)
            await caller.send(wire.have(0, 0b110, RUNS, 0))
            await until(lambda: runs_of(one, 7) == 0b111)
        await until(lambda: not one.net.stats.connections)
        assert runs_of(one, 7) == 0b111, "a node that has all of it hangs up"


async def test_a_node_that_comes_back_with_less_has_less() -> None:
    async with node(1) as one:
        port = one.swarm(MODEL)
        for have in (EVERYTHING, 0b1):
            async with await raw.member(one, 7) as caller:
                await caller.send(raw.join(MODEL, have=have))
                await until(lambda have=have: runs_of(one, 7) == have)  # type: ignore[misc]
                if have == 0b1:  # and it is told again what it has lost
                    port.store.have.update(range(len(MODEL.chunks)))
                    one.net.announce(DIGEST, EVERYTHING)
                    told = wire.parse_have(await caller.frame(wire.Kind.HAVE), RUNS)
                    assert told == EVERYTHING & ~0b1
            await until(lambda: not one.net.stats.connections)


async def test_a_late_list_takes_back_nothing_that_came_on_the_other_connection() -> None:
    """The list was written before the newer word, and arrives after it."""
    async with node(1) as one, node(2) as two:
        one.swarm(MODEL)
        port = two.swarm(MODEL)
        one.net.dial(DIGEST, 2, two.address)
        await port.heard("inbound", 1, one.address, True)
        await until(lambda: 2 in one.net.heard(DIGEST))
        two.net.announce(DIGEST, 0b10)
        await until(lambda: runs_of(one, 2) == 0b10)
        two.net.dial(DIGEST, 1, one.address)  # its list is empty: nothing is proved there
        await port.heard("joined", 1, 0)
        assert runs_of(one, 2) == 0b10


async def test_a_node_that_left_is_forgotten_unless_it_is_connected() -> None:
    async with node(1) as one:
        one.swarm(MODEL)
        async with await raw.member(one, 7) as caller:
            await caller.send(raw.join(MODEL, have=0b1))
            await until(lambda: runs_of(one, 7) == 0b1)
            assert not one.net.forget_heard(DIGEST, 7)
            assert runs_of(one, 7) == 0b1
        await until(lambda: not one.net.stats.connections)
        assert one.net.forget_heard(DIGEST, 7)
        assert 7 not in one.net.heard(DIGEST)
        assert one.net.forget_heard(DIGEST, 99), "nobody said anything"


async def test_a_model_that_is_removed_takes_it_along() -> None:
    async with node(1) as one:
        one.swarm(MODEL)
        async with await raw.member(one, 7) as caller:
            await caller.send(raw.join(MODEL, have=0b1))
            await until(lambda: runs_of(one, 7) == 0b1)
            one.net.remove_swarm(DIGEST)
            assert not one.net.heard(DIGEST)
            one.swarm(MODEL)  # it comes back, and the caller hasn't joined that
            await caller.send(wire.have(0, 0b10, RUNS, 0))
            await caller.send(wire.pack(wire.Kind.PING))
            await caller.frame(wire.Kind.PING)
            assert not one.net.heard(DIGEST)


def test_callers_without_end_cost_no_memory_and_neighbours_find_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heard, "MAX_HEARD", 10)
    swarm = Heard()
    for number in range(100):
        swarm.on_list(number, 1, dialled=False)
        swarm.on_more(number, 2)
    assert len(swarm.runs) == 10
    swarm.on_list(500, 1, dialled=True)
    swarm.on_more(500, 2)
    assert swarm.runs_of(500) == 3
    swarm.on_list(3, 4, dialled=False)
    assert swarm.runs_of(3) == 4, "a list replaces what was said before"
