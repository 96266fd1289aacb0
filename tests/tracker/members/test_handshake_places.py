"""Handshakes of many strangers at once: who gets a place, who waits, and who makes room."""

import asyncio
import contextlib
from functools import partial

import aiohttp
import msgspec
import pytest

from p2pcache.core.protocol.handshake import Welcome
from p2pcache.errors import Unreachable
from p2pcache.tracker.members import handshake_places
from p2pcache.tracker.members.handshake_places import HandshakePlaces
from tests.io import strangers_kit
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import tracker
from tests.tracker.members.handshake_kit import answer, dialled


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


async def test_a_storm_behind_one_address_waits_for_its_turn() -> None:
    async with tracker() as app, contextlib.AsyncExitStack() as stack:
        agents = [FakeAgent(number + 1) for number in range(150)]
        entering = (stack.enter_async_context(one.member(app.address)) for one in agents)
        await asyncio.gather(*entering)  # nobody is refused
        assert len(app.members) == 150
        assert not app.members._places._present


async def test_every_way_out_gives_the_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each failed handshake would cost its address one of its places for ever."""
    monkeypatch.setattr(handshake_places, "EACH", 2)
    monkeypatch.setattr(handshake_places, "PLACE_S", 0.05)
    places, out = HandshakePlaces(), list[str]()
    for _ in range(5):
        with contextlib.suppress(ZeroDivisionError):
            async with places.hold_place("10.0.0.1", lambda: None):
                raise ZeroDivisionError
    async with contextlib.AsyncExitStack() as stack:
        for name in ("a", "b", "c"):  # the third waits, and then the first has to go
            place = places.hold_place("10.0.0.1", partial(out.append, name))
            await stack.enter_async_context(place)
        assert out == ["a"]
        assert len(places) == 2
    assert len(places) == 0
    assert not places._present
    assert not places._shares
    async with (
        places.hold_place("10.0.0.1", lambda: None),
        places.hold_place("10.0.0.1", lambda: None),
    ):
        assert len(places) == 2


async def test_one_that_waits_and_is_cancelled_takes_no_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake_places, "EACH", 1)
    places = HandshakePlaces()
    async with places.hold_place("10.0.0.1", lambda: None):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), places.hold_place("10.0.0.1", lambda: None):
                pytest.fail("it had no place")
        assert places._present == {"10.0.0.1": 1}
    async with asyncio.timeout(1), places.hold_place("10.0.0.1", lambda: None):
        assert len(places) == 1
