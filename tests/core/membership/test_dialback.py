"""Which nodes are dialled back, when, and what is believed of the answers."""

import itertools
from collections.abc import Callable
from ipaddress import ip_address
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.membership import settings
from p2pcache.core.membership.member_record import Reach
from p2pcache.core.membership.reachability import Dial, DialBacks
from p2pcache.core.protocol import messages as m


def member(node: int, *, address: str = "", site: str = "") -> m.Member:
    return m.Member(node, address or f"10.0.0.{node}:7401", "", site)


def doubted(dials: DialBacks) -> set[int]:
    """Nodes of which the dials say nothing good, as far as they are believed."""
    return {node for node in dials._nodes if dials.reach(node) in (Reach.SILENT, Reach.UNREACHABLE)}


def unreachable(dials: DialBacks) -> set[int]:
    return {node for node in dials._nodes if dials.reach(node) is Reach.UNREACHABLE}


def whom(dials: DialBacks, now: float) -> list[m.Member]:
    return [dial.member for dial in dials.step(now)]


def tried(*reached: int, failed: tuple[int, ...] = (), site: str = "") -> DialBacks:
    dials = DialBacks()
    for node in (*reached, *failed):
        dials.on_announced(member(node, site=site), 0.0)
    for one in dials.step(0.0):
        dials.on_ended(one, reached=one.member.node in reached, now=0.0)
    dials.check()
    return dials


def tried_again(dials: DialBacks, now: float, one: m.Member, *, reached: bool) -> None:
    """A member comes back and is dialled; whatever else is dialled fails."""
    dials.on_announced(one, now)
    for dial in dials.step(now):
        dials.on_ended(dial, reached=reached and dial.member == one, now=now)
    dials.check()


def lived(
    dials: DialBacks, begin: float, end: float,
    before: Callable[[int, float], None] = lambda tick, now: None,
) -> list[tuple[float, Dial]]:  # fmt: skip
    """Dials that begin between these times, in steps of 10 ms; all fail at once."""
    begun: list[tuple[float, Dial]] = []
    for tick in range(int((end - begin) * 100)):
        now = begin + tick / 100
        before(tick, now)
        for one in dials.step(now):
            begun.append((now, one))
            dials.on_ended(one, reached=False, now=now)
        dials.check()
    return begun


def test_each_that_announces_itself_is_dialled_once() -> None:
    dials = DialBacks()
    for _ in range(2):
        dials.on_announced(member(1), 0.0)
    (first,) = dials.step(0.0)
    assert first.member == member(1)
    assert dials.step(1.0) == []
    dials.on_ended(first, reached=True, now=1.0)
    assert dials.step(9.0) == []
    dials.on_announced(member(1), 9.0)
    assert whom(dials, 9.0) == [member(1)], "it came back: perhaps not as it was"


def test_a_node_that_comes_back_while_it_is_dialled_is_dialled_once_more() -> None:
    """It would otherwise have waited for the pause after its failures."""
    dials = tried(1, failed=(2,))
    dials.on_announced(member(2), 2.0)
    assert not dials.step(2.0)
    (second,) = dials.step(settings.AGAIN_S)
    dials.on_announced(member(2), 5.1)
    assert not dials.step(5.1)
    dials.on_ended(second, reached=False, now=6.2)
    dials.check()
    assert dials.next_wakeup() == 2 * settings.AGAIN_S, "not after ten seconds from the end"
    assert whom(dials, 10.0) == [member(2)]


def test_only_numbers_of_nodes_are_dialled() -> None:
    """A name would keep the tracker waiting for a resolver; 169.254.169.254 is a cloud's metadata."""
    dials = DialBacks()
    for node, address in enumerate((
        "", "node-7:7401", "169.254.169.254:80", "[::ffff:169.254.169.254]:80", "[fe80::1]:80",
        "[fe80::1%eth0]:80", "[::1%a..b]:7401", "[::1%" + 70 * "a" + "]:7401", "[::1%\ud800]:7401",
        "0.0.0.0:7401", "[::ffff:0.0.0.0]:7401", "224.0.0.1:1",
    )):  # fmt: skip
        dials.on_announced(m.Member(node, address), 0.0)
    assert dials.step(1.0) == []
    good = [m.Member(20, "[2001:db8::1]:7401"), m.Member(21, "127.0.0.1:7401")]
    for one in good:
        dials.on_announced(one, 1.0)
    assert whom(dials, 2.0) == good


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "10.0.0.1:0", "10.0.0.1:x", "10.0.0.1:000080" + 20 * "9"]
)
def test_an_address_that_nobody_can_dial_is_tried_all_the_same(address: str) -> None:
    """It fails at once, and people hear of the node."""
    dials = tried(1)
    tried_again(dials, 1.0, m.Member(2, address), reached=False)
    assert unreachable(dials) == {2}


def moves(dials: DialBacks, tick: int, now: float) -> None:
    dials.on_announced(member(1, address=f"10.0.0.{tick % 250}:7401"), now)


def leaves_and_comes(dials: DialBacks, _tick: int, now: float) -> None:
    dials.forget(1)
    dials.on_announced(member(1), now)


def hides(dials: DialBacks, tick: int, now: float) -> None:
    dials.on_announced(member(1, address="name:1" if tick % 2 else "10.0.0.1:1"), now)


def stays(dials: DialBacks, _tick: int, now: float) -> None:
    dials.on_announced(member(1), now)


@pytest.mark.parametrize("trick", [moves, leaves_and_comes, hides, stays])
def test_nobody_has_us_dial_more_often_than_others_or_fills_our_memory(
    trick: Callable[[DialBacks, int, float], None],
) -> None:
    dials = DialBacks()
    begun = lived(dials, 0.0, 20.0, lambda tick, now: trick(dials, tick, now))
    assert len(begun) in {4, 5}
    pauses = [later - sooner for (sooner, _), (later, _) in itertools.pairwise(begun)]
    assert min(pauses) >= settings.AGAIN_S
    assert len(dials._due) < 600, "the times of the last seconds"
    dials.forget(1)
    lived(dials, 20.0, 30.0)
    assert not dials._nodes


def test_deadlines_that_a_sooner_one_replaced_are_not_kept() -> None:
    """A node came back half a second after its dial, and then three, for half a day: 11,000 times were kept."""
    dials, now = tried(1, failed=(2,)), 0.0
    for turn in range(6000):
        due = now + (0.5, 3.0)[turn % 2]
        while now < due:
            now = min(due, dials.next_wakeup())
            if now == due:
                dials.on_announced(member(2), now)
            for one in dials.step(now):
                dials.on_ended(one, reached=False, now=now)
    dials.check()
    assert len(dials._due) < 700, "one for each second of the longest pause at most"


def test_first_come_first_dialled_so_that_nobody_waits_for_ever() -> None:
    """Pods in crash loops took all places, and nodes that had failed once were never tried again."""
    dials, now = tried(1, failed=(2,)), 0.0
    open_dials: list[tuple[float, Dial]] = []
    again: list[int] = []
    for tick in range(3000):  # more newcomers in the void than dials can end
        now = tick / 100
        for node in range(3):
            dials.on_announced(member(1000 + 3 * tick + node, address="10.0.0.9:1"), now)
        while open_dials and open_dials[0][0] <= now:
            dials.on_ended(open_dials.pop(0)[1], reached=False, now=now)
        for one in dials.step(now):
            open_dials.append((now + settings.DIAL_S, one))
            again += [round(now)] * (one.member.node == 2)
    assert again
    assert again[0] < 10


def test_a_storm_of_members_is_dialled_at_a_rate() -> None:
    dials = DialBacks()
    for node in range(10_000):
        dials.on_announced(member(node, address=f"{ip_address(node + 1)}:1"), 0.0)
    begun, now = 0, 0.0
    while now < 10.0:
        due = dials.next_wakeup()
        now = max(now, due)
        started = dials.step(now)
        for one in started:
            dials.on_ended(one, reached=True, now=now)
        begun += len(started)
        assert begun <= settings.RATE * (now + settings.BURST_S) + 2
    assert begun > 0.95 * 10 * settings.RATE


def test_a_node_that_does_not_answer_is_doubted_until_it_does() -> None:
    dials = tried(1)
    dials.on_announced(member(2), 1.0)
    dials.changed.clear()
    (second,) = dials.step(1.0)
    assert dials.reach(2) is Reach.SILENT
    assert dials.changed == {2}
    dials.on_ended(second, reached=True, now=1.2)
    assert dials.reach(2) is Reach.REACHABLE


def test_of_whom_something_is_known_nothing_is_doubted_while_it_is_dialled_again() -> None:
    dials = tried(1, 2)
    dials.on_announced(member(2), 5.0)
    (second,) = dials.step(5.0)
    dials.step(6.0)
    assert not doubted(dials), "it was reached"
    dials.on_ended(second, reached=False, now=6.0)
    assert unreachable(dials) == {2}
    dials.on_announced(member(2), 10.0)
    dials.step(10.0)
    dials.step(11.0)
    assert unreachable(dials) == {2}, "it wasn't, and isn't silent for a moment only"


def test_a_node_that_fails_is_tried_again_less_and_less() -> None:
    dials = tried(1, failed=(2,))
    assert 2 in dials.changed
    pauses, now = [], 0.0
    for _ in range(12):
        begun: list[Dial] = []
        due = now
        while not begun:
            due = dials.next_wakeup()
            begun = dials.step(due)
        pauses.append(due - now)
        now = due
        assert unreachable(dials) == {2}
        dials.on_ended(begun[0], reached=False, now=now)
    assert pauses[:3] == [5.0, 10.0, 20.0]
    assert pauses[-1] == settings.VERDICT_S
    tried_again(dials, now + 5.0, member(2), reached=True)  # sooner than in a minute
    assert not doubted(dials)
    tried_again(dials, now + 10.0, member(2), reached=False)
    assert dials.next_wakeup() == now + 10.0 + settings.AGAIN_S, "the first failure since"


def test_a_tracker_that_reaches_hardly_anybody_says_nothing() -> None:
    assert not doubted(tried(failed=(1, 2, 3)))
    assert not doubted(tried(1, failed=(2, 3)))
    assert unreachable(tried(1, 2, failed=(3, 4))) == {3, 4}
    dials = tried(1, failed=(2,))
    tried_again(dials, 1.0, member(3), reached=False)
    assert not doubted(dials), "two against one"


def test_one_node_at_the_balance_does_not_turn_a_site_over_and_over() -> None:
    dials = tried(*range(10), failed=tuple(range(100, 110)))
    assert len(unreachable(dials)) == 10
    for step in range(1, 5):
        site = "elsewhere" if step % 2 else ""
        tried_again(dials, 5.0 * step, member(0, site=site), reached=True)
        assert len(unreachable(dials)) == 10
    for node in range(3):
        dials.forget(node)
    assert not unreachable(dials)


def test_sites_speak_for_themselves() -> None:
    dials = tried(1, 2, site="here")
    for node in (3, 4):
        tried_again(dials, 1.0, member(node, site="behind NAT"), reached=False)
    assert not doubted(dials)


def test_a_node_that_moves_or_leaves_is_judged_anew() -> None:
    dials = tried(1, failed=(2,))
    dials.on_announced(member(2), 5.0)
    (before,) = dials.step(5.0)
    dials.on_announced(member(2, address="10.9.9.9:1"), 5.0)
    assert not unreachable(dials)
    (again,) = dials.step(10.0)
    assert again.member.address == "10.9.9.9:1"
    dials.on_ended(before, reached=False, now=10.1)
    assert not unreachable(dials), "an answer from before"
    dials.forget(2)
    dials.on_ended(again, reached=False, now=10.2)
    dials.check()
    assert not unreachable(dials)
    dials.on_announced(member(2), 10.3)
    assert whom(dials, 15.0) == [member(2)]


def test_a_node_that_moves_to_and_fro_is_judged_by_its_last_dial() -> None:
    dials = tried(1)
    dials.on_announced(member(2), 1.0)
    (first,) = dials.step(1.0)
    dials.on_announced(member(2, address="10.9.9.9:1"), 1.0)
    dials.on_announced(member(2), 1.0)
    (second,) = dials.step(6.0)
    dials.on_ended(first, reached=False, now=6.1)
    assert not unreachable(dials)
    dials.on_ended(second, reached=True, now=6.2)
    assert not dials.step(60.0)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from("aabfrw"), st.booleans(), st.booleans()))
)
def test_any_story(steps: list[tuple[int, str, bool, bool]]) -> None:
    dials, now = DialBacks(), 0.0
    out: list[Dial] = []
    begun: dict[int, float] = {}
    for node, what, flag, pause in steps:
        now += 0.53 if pause else 0.03
        match what:
            case "a":
                dials.on_announced(member(node, site="x" if flag else ""), now)
            case "b":
                address = f"10.1.1.{node}:1" if flag else "name:1"
                dials.on_announced(member(node, address=address), now)
            case "f":
                dials.forget(node)
            case "w":
                now += 6.0
            case _ if out:
                dials.on_ended(out.pop(node % len(out)), reached=flag, now=now)
        for dial in dials.step(now):
            assert now - begun.get(dial.member.node, -inf) >= settings.AGAIN_S
            begun[dial.member.node] = now
            out.append(dial)
        dials.check()
        assert dials.next_wakeup() > now
