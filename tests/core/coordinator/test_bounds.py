"""One member's message holds the tracker for a moment only, and what a member makes it keep is bounded."""

import sys
import time
from collections.abc import Callable

import pytest

from p2pcache.core import bitset
from p2pcache.core.coordinator import settings
from p2pcache.core.coordinator.swarm_state import check_state
from p2pcache.core.membership.outputs import Close, Send
from p2pcache.core.membership.settings import MOST_NODES
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.certificate_identity import bearer_of
from p2pcache.core.settings import MemberSettings
from p2pcache.errors import RemoteProtocolError
from tests.core.coordinator.tracking_kit import EPOCH, World, X, state

MANY = 1_000_000  # the runs of the largest model
HELD_S = 3.0  # of processor time; half a second on a quiet machine, and minutes if work grows by the square


def digest(number: int) -> str:
    return f"{number:064x}"


def large(world: World) -> None:
    """Two members of a swarm of the largest model; the second one says that it has nearly all of it."""
    nearly = bitset.to_bytes(bitset.full(MANY - 1), MANY)
    for node, have in ((1, b""), (2, nearly)):
        world.tracking.handle(
            node,
            m.Announce(f"10.0.0.{node}:1", "1", swarms=(m.SwarmState(X, MANY, have, credit=4),)),
            world.now,
        )


def longest(world: World, node: int, message: m.ToTracker) -> float:
    """Processor seconds of the longest call while the tracker takes in a message and does what follows."""
    worst = 0.0

    def timed(call: Callable[[], object]) -> None:
        nonlocal worst
        began = time.thread_time()
        call()
        worst = max(worst, time.thread_time() - began)

    timed(lambda: world.tracking.handle(node, m.decode_to_tracker(m.encode(message)), world.now))
    for _ in range(2000):
        due = world.tracking.next_wakeup()
        if due > world.now + 8:
            break
        world.now = max(world.now, due)
        timed(lambda: world.tracking.tick(world.now))
    return worst


EVERY = bitset.to_bytes(bitset.full(MANY), MANY)
MESSAGES: dict[str, m.ToTracker] = {
    "many done": m.LeaseReport(X, EPOCH, done=tuple(range(90_000))),
    "many failed": m.LeaseReport(
        X, EPOCH, failed=tuple(range(90_000)), wanted=EVERY[:-1] + b"\x7f", credit=3
    ),
    "many demanded": m.LeaseReport(X, EPOCH, demanded=tuple(range(90_000))),
    "stuck": m.Stuck(X, tuple(range(MANY - 32, MANY)), EVERY, tuple(range(2, 66))),
    "many leases": m.Enter(m.SwarmState(X, MANY, b"", leases=tuple(range(50_000)))),
    "many named": m.Enter(
        m.SwarmState(X, MANY, b"", known=tuple(range(1 << 40, (1 << 40) + 50_000)))
    ),
    "complete": m.Enter(m.SwarmState(X, MANY, complete=True)),
    "one swarm often": m.Heartbeat(
        swarms=tuple(m.SwarmState(X, MANY, b"", credit=2) for _ in range(40_000))
    ),
    "large swarms": m.Heartbeat(
        swarms=tuple(m.SwarmState(digest(i), MANY, credit=2) for i in range(2000))
    ),
    "many swarms": m.Announce(
        "h:1", "1", swarms=tuple(m.SwarmState(digest(i), 9) for i in range(20_000))
    ),
    "exit": m.Exit(X),
    "leaving": m.Leaving(),
}


@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("name", MESSAGES)
def test_no_message_holds_the_tracker(name: str, node: int) -> None:
    world = World()
    large(world)
    assert longest(world, node, MESSAGES[name]) < HELD_S


def test_only_as_many_leases_as_may_be_in_flight_are_read() -> None:
    """To read all that fit into a message took half a second of the tracker's loop."""
    said = m.SwarmState(X, 9, leases=(0, 1, 2, 3, 99))
    check_state(said, 4)
    with pytest.raises(RemoteProtocolError, match="beyond a model"):
        check_state(said, 5)


def test_of_each_list_of_a_report_only_the_first_runs_are_read() -> None:
    """A message of half a megabyte holds half a million of them."""
    world = World()
    world.announce(1, state(credit=1))
    for name in ("done", "failed", "returned", "mismatched", "demanded"):
        lists = {name: (0,) * m.MAX_REPORTED + (10**6,)}
        world.say(1, m.LeaseReport(X, EPOCH, **lists))  # type: ignore[arg-type]
        with pytest.raises(RemoteProtocolError, match="beyond a model"):
            world.say(1, m.LeaseReport(X, EPOCH, **{name: lists[name][1:]}))  # type: ignore[arg-type]


def test_a_long_message_of_a_short_kind_is_not_even_decoded() -> None:
    data = m.encode(m.LeaseReport(X, EPOCH, done=tuple(range(200_000))))
    with pytest.raises(RemoteProtocolError, match="lists no swarms"):
        m.decode_to_tracker(data)
    beat = m.Heartbeat(swarms=tuple(m.SwarmState(digest(i), 9) for i in range(10_000)))
    assert m.decode_to_tracker(m.encode(beat)) == beat


@pytest.mark.parametrize("lists", ["vain", "gives"])
def test_a_notice_names_few_nodes_and_readers_are_looked_at_once(lists: str) -> None:
    """Where all have one certificate, nobody can agree: all readers were looked at for each node that was named."""
    world = World(members=MemberSettings(certified=True))
    nodes = range(2, 3002)
    for node in (1, *nodes):
        said = m.Announce(f"10.0.0.1:{node}", "1", swarms=(state(1 if node > 1 else 0, credit=1),))
        world.tracking.handle(node, said, world.now)
    swarm, looked_at = world.tracking.swarms[X], list[int]()

    def bearer(node: int) -> int:
        looked_at.append(node)
        return bearer_of(node)

    swarm.reach._bearer = bearer
    named = tuple(nodes)[: 4 * m.MAX_NAMED]
    world.tracking.handle(1, m.Stuck(X, (0,), vain=named), world.now)
    void = [node for node in named if swarm.roster.members[node].void]
    assert void == list(named[: m.MAX_NAMED])
    assert len(looked_at) < 2 * len(nodes)
    if lists == "gives":
        for node in named:
            swarm.roster.members[node].complained_by |= {1}
        world.tracking.handle(1, m.Stuck(X, (), gives=named[1:]), world.now)
        heard = [node for node in named if not swarm.roster.members[node].complained_by]
        assert heard == list(named[1 : m.MAX_NAMED + 1])
    world.tracking.check()


def test_made_up_models_are_forgotten_when_they_cost_too_much() -> None:
    world = World()
    world.announce(1, *(m.SwarmState(digest(i), MANY, b"") for i in range(1, 1000)))
    world.announce(2, state(credit=1))
    world.wait(5.0, alive=(1, 2))
    record = world.tracking.registry.nodes[1]
    assert record.cost_bytes <= settings.MAX_MEMBER_BYTES
    assert 100 < len(record.digests) < 250
    assert digest(999) in record.digests  # the ones told of last
    assert len(world.tracking.swarms) == len(record.digests) + 1  # another member's stays


def test_a_member_with_thousands_of_models_is_a_member_of_all_swarms() -> None:
    world = World()
    world.announce(2)
    world.say(
        1, m.Announce("h:1", "1", swarms=tuple(state(1, digest=digest(i)) for i in range(4500)))
    )
    assert len(world.tracking.swarms) <= 2 * settings.SWARMS_AT_ONCE
    world.say(2, m.Enter(state(1, digest=digest(9999))))  # others are heard meanwhile
    while world.tracking.registry.nodes[1].waiting:
        world.now += 0.001
        before = len(world.tracking.swarms)
        world.tracking.tick(world.now)
        assert len(world.tracking.swarms) <= before + settings.SWARMS_AT_ONCE
    world.tracking.check()
    assert len(world.tracking.registry.nodes[1].digests) == 4500


def test_a_node_that_is_gone_takes_little_memory() -> None:
    world = World()
    world.announce(1, *(state(1, digest=digest(i)) for i in range(1000)))
    world.wait(1.0, alive=(1,))
    assert len(world.tracking.registry.nodes[1].digests) == 1000
    world.say(1, m.Leaving())
    assert sys.getsizeof(world.tracking.registry.departed[1].digests) < 200


def test_a_later_word_about_a_swarm_takes_the_place_of_one_that_waits() -> None:
    world = World()
    swarms = tuple(state(0b11, digest=digest(i)) for i in range(100))
    world.announce(1, *swarms)
    world.say(1, m.Enter(state(0b111, digest=digest(99))))
    world.say(1, m.Exit(digest(98)))
    world.say(1, m.LeaseReport(digest(97), EPOCH, done=(5,)))
    world.say(1, m.Heartbeat(swarms=(state(0b1111, digest=digest(96)),)))
    world.wait(1.0, alive=(1,))

    def have(number: int) -> int:
        return world.tracking.swarms[digest(number)].roster.members[1].have

    assert [have(n) for n in (95, 96, 97, 99)] == [0b11, 0b1111, 0b100011, 0b111]
    assert digest(98) not in world.tracking.swarms


def test_a_lease_is_renewed_while_a_long_list_waits() -> None:
    world = World()
    world.announce(1, *(state(1, digest=digest(i)) for i in range(2000)))
    world.say(1, m.Enter(state(credit=1)))
    mine = tuple(world.granted(1))
    world.join(2, credit=0)
    for _ in range(10):
        world.now += 3.0  # the tracker is so busy that nobody has a second turn
        world.say(1, m.Heartbeat(swarms=(state(credit=1, leases=mine),)))
        world.say(2, m.Heartbeat(swarms=(state(),)))
    book = world.tracking.swarms[X].book
    assert (tuple(book.leases), book.ends.total()) == (mine, 0)


def test_a_pull_is_answered_at_once_while_long_lists_wait() -> None:
    world = World()
    for node in range(10, 40):
        world.announce(node, *(state(1, digest=digest(i)) for i in range(100)))
    assert len(world.tracking._turns) > settings.SWARMS_AT_ONCE
    world.announce(1)
    out = world.tracking.handle(1, m.Enter(state(credit=1)), world.now)
    grants = [one.message for one in out if isinstance(one, Send) and one.node == 1]
    assert any(isinstance(message, m.Grant) for message in grants)


def test_of_long_lists_a_number_of_states_wait() -> None:
    world = World()
    world.announce(1)
    states = [m.SwarmState(digest(i), 9, b"") for i in range(3 * m.MAX_TOLD)]
    for first in range(0, len(states), m.MAX_TOLD):
        some = tuple(states[first : first + m.MAX_TOLD])
        world.tracking.handle(1, m.Heartbeat(swarms=some), world.now)
    record = world.tracking.registry.nodes[1]
    assert m.MAX_TOLD - 2 * settings.SWARMS_AT_ONCE < len(record.waiting) <= m.MAX_TOLD
    place = 3 * settings.SWARMS_AT_ONCE
    again = m.SwarmState([*record.waiting][place], 9, b"", credit=1)
    few = states[-settings.SWARMS_AT_ONCE :]
    world.tracking.handle(1, m.Heartbeat(swarms=(*few, again)), world.now)
    assert record.waiting[again.digest] == (again, False)
    assert [*record.waiting].index(again.digest) < place, "a later word keeps the place"


def test_a_bad_state_that_waited_ends_the_connection() -> None:
    world = World()
    good = tuple(state(digest=digest(i)) for i in range(settings.SWARMS_AT_ONCE))
    bad = m.SwarmState(digest(1000), 1, b"\xff\xff")
    out = world.tracking.handle(1, m.Announce("h:1", "1", swarms=(*good, bad)), 0)
    assert [one.node for one in out if isinstance(one, Close)] == [1]
    world.tracking.check()


def test_members_take_turns_with_long_lists() -> None:
    world = World()
    for node in (1, 2):
        lists = tuple(state(digest=digest(1000 * node + i)) for i in range(600))
        world.announce(node, *lists)
    taken = [len(record.digests) for record in world.tracking.registry.nodes.values()]
    for _ in range(8):
        world.tracking.tick(world.now)
    more = [
        len(one.digests) - n
        for one, n in zip(world.tracking.registry.nodes.values(), taken, strict=True)
    ]
    assert more == [4 * settings.SWARMS_AT_ONCE] * 2


def test_all_swarms_have_their_turn_while_members_come() -> None:
    """A tracker that restarted awaits members of all swarms, and each one that comes may be one of them."""
    digests = [digest(i) for i in range(8 * settings.SWARMS_AT_ONCE)]
    awaited = {**{one: [7, 8] for one in digests}, digests[-1]: [7]}
    world = World(remembered=awaited)
    world.announce(1, *(state(credit=1, digest=one) for one in digests))
    world.wait(0.1)
    assert not world.granted(1)
    for node in (7, *range(100, 120)):
        world.now += 0.01
        world.announce(node)
    assert [grant.digest for grant in world.got(1, m.Grant)] == [digests[-1]]


def test_named_nodes_are_awaited_up_to_a_number() -> None:
    world = World()
    world.announce(1)
    for part in range(4):
        first = (1 << 40) + part * 15_000
        world.say(1, m.Enter(state(credit=1, known=tuple(range(first, first + 15_000)))))
    assert len(world.tracking.swarms[X].barrier.awaited) == MOST_NODES
    record = world.tracking.registry.nodes[1]
    assert record.cost_bytes > 60_000 * settings.NAMED_BYTES
    world.wait(world.tracking.swarms[X].barrier.until - world.now, alive=(1,))
    before = record.cost_bytes
    world.say(1, m.Enter(state(credit=1, known=tuple(range(1 << 41, (1 << 41) + 15_000)))))
    assert record.cost_bytes == before, "nobody is awaited any more"


def test_a_model_that_a_member_goes_on_telling_of_is_not_forgotten() -> None:
    world = World()
    world.announce(1, state(credit=2))
    for part in range(5):
        world.say(1, m.Heartbeat(swarms=(state(credit=2),)))
        for i in range(60):
            world.say(1, m.Enter(m.SwarmState(digest(100 * part + i), MANY, b"")))
    record = world.tracking.registry.nodes[1]
    assert len(record.digests) < 300
    assert X in record.digests
