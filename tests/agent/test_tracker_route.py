"""The order in which trackers are dialled."""

import socket

import pytest

from p2pcache.agent.tracker_route import PinnedResolver, Target, TrackerRoute
from p2pcache.errors import UsageError

A, B, C = "http://a:7400", "http://b:7400", "http://c:7400"


async def alone(_host: str, _port: int) -> list[str]:
    return ["10.0.0.1"]


async def next_targets(route: TrackerRoute, count: int) -> list[str]:
    return [str(await route.next_target()) for _ in range(count)]


async def test_trackers_are_dialled_in_order_round_by_round() -> None:
    route = TrackerRoute(f"{A}, {B},{A}/", alone)
    first = await next_targets(route, 1), route.more
    second = await next_targets(route, 1), route.more
    assert (first, second) == (([A], True), ([B], False))
    assert await next_targets(route, 2) == [A, B]


async def test_each_address_of_a_name_is_a_tracker() -> None:
    async def two(host: str, port: int) -> list[str]:
        assert (host, port) == ("trackers", 7400)
        return ["10.0.0.1", "10.0.0.2"]

    route = TrackerRoute("http://trackers:7400", two)
    first = await route.next_target()
    assert first == Target("http://trackers:7400", "10.0.0.1")
    assert str(first) == "http://trackers:7400 (10.0.0.1)"
    assert route.lead_to("http://10.0.0.2:7400")
    assert (await route.next_target()).address == "10.0.0.2"


async def test_a_name_with_many_addresses_is_no_way_to_make_an_agent_dial_for_ever() -> None:
    async def many(_host: str, _port: int) -> list[str]:
        return [f"10.0.0.{n}" for n in range(200)]

    route = TrackerRoute("http://trackers:7400", many)
    for _ in range(16):
        await route.next_target()
    assert not route.more


async def test_the_tracker_that_was_lost_is_dialled_first_again() -> None:
    route = TrackerRoute(f"{A},{B},{C}", alone)
    await next_targets(route, 2)
    route.on_lost(Target(B), away=False)
    assert not route.more
    assert await next_targets(route, 3) == [B, A, C]
    assert await next_targets(route, 3) == [A, B, C]


async def test_a_tracker_that_fell_silent_is_dialled_last() -> None:
    route = TrackerRoute(f"{A},{B},{C}", alone)
    await next_targets(route, 1)
    route.on_lost(Target(A), away=True)
    assert await next_targets(route, 3) == [B, C, A]


async def test_a_standby_doesnt_lead_back_to_a_tracker_that_fell_silent() -> None:
    """It takes the silent one for active until its tenure is over."""
    route = TrackerRoute(f"{A},{B}", alone)
    await next_targets(route, 1)
    route.on_lost(Target(A), away=True)
    assert await next_targets(route, 1) == [B]
    assert not route.lead_to(A)
    assert route.lead_to(A, again=True)


async def test_a_standby_leads_to_the_active_tracker() -> None:
    route = TrackerRoute(f"{A},{B},{C}", alone)
    await next_targets(route, 1)
    assert route.lead_to(C)
    assert await next_targets(route, 2) == [C, B]


async def test_a_standby_doesnt_lead_back_to_a_tracker_that_was_tried() -> None:
    """Two that each take the other for the active one would send an agent to and fro for ever."""
    route = TrackerRoute(f"{A},{B}", alone)
    await next_targets(route, 2)
    assert not route.lead_to(A)
    assert route.lead_to(A, again=True)  # it became active a moment ago
    assert await next_targets(route, 1) == [A]


@pytest.mark.parametrize("hint", [
    "", "http://evil:7400", "http://a:7401", "a:7400", "http://[", "http://a:99999", "http://169.254.169.254:80",
    "\x00", "http://a:7400@evil:7400/",
])  # fmt: skip
async def test_a_standby_leads_to_no_tracker_that_isnt_configured(hint: str) -> None:
    route = TrackerRoute(f"{B},{A}", alone)
    await next_targets(route, 1)
    assert not route.lead_to(hint)
    assert not route.lead_to(hint, again=True)
    assert not route.knows(hint)
    assert await next_targets(route, 1) == [A]


@pytest.mark.parametrize("text", ["", ",", "a:7400", f"{A},b:7400", "ftp://a:7400", "http://:7400"])
def test_what_is_no_tracker_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="URL"):
        TrackerRoute(text)


async def test_a_pinned_name_means_one_address() -> None:
    resolver = PinnedResolver()
    resolver.address = "10.0.0.7"
    (found,) = await resolver.resolve("trackers", 7400)
    assert (found["host"], found["hostname"], found["port"]) == ("10.0.0.7", "trackers", 7400)
    resolver.address = "fd00::7"
    assert (await resolver.resolve("trackers", 7400))[0]["family"] == socket.AF_INET6
    resolver.address = ""
    assert {r["host"] for r in await resolver.resolve("localhost", 7400)} <= {"127.0.0.1", "::1"}
    await resolver.close()
