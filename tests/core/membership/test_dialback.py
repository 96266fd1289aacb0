"""Which nodes are dialled back, when, and what is believed of the answers."""

import itertools
from collections.abc import Callable
from ipaddress import ip_address
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.membership import settings
from p2pcache.core.membership.dialback import Dial, DialBacks
from p2pcache.core.protocol import messages as m


def member(node: int, *, address: str = "", site: str = "") -> m.Member:
    return m.Member(node, address or f"10.0.0.{node}:7401", "", site)


def whom(dials: DialBacks, now: float) -> list[m.Member]:
    return [dial.member for dial in dials.step(now)]


def tried(*reached: int, failed: tuple[int, ...] = (), site: str = "") -> DialBacks:
    dials = DialBacks()
    for node in (*reached, *failed):
        dials.on_announced(member(node, site=site))
    for one in dials.step(0.0):
        dials.on_ended(one, reached=one.member.node in reached, now=0.0)
    dials.check()
    return dials


def lived(
    dials: DialBacks, begin: float, end: float, before: Callable[[int], None] = lambda tick: None
) -> list[tuple[float, Dial]]:
    """Dials that begin between these times, in steps of 10 ms; all fail at once."""
    begun: list[tuple[float, Dial]] = []
    for tick in range(int((end - begin) * 100)):
        now = begin + tick / 100
        before(tick)
        dials.doubt_late(now)
        for one in dials.step(now):
            begun.append((now, one))
            dials.on_ended(one, reached=False, now=now)
        dials.check()
    return begun


def test_each_that_announces_itself_is_dialled_once() -> None:
    dials = DialBacks()
    for _ in range(2):
        dials.on_announced(member(1))
    (first,) = dials.step(0.0)
    assert first.member == member(1)
    assert dials.step(1.0) == []
    dials.on_ended(first, reached=True, now=1.0)
    dials.doubt_late(9.0)
    assert dials.step(9.0) == []
    dials.on_announced(member(1))
    assert whom(dials, 9.0) == [member(1)], "it came back: perhaps not as it was"


def test_a_node_that_comes_back_while_it_is_dialled_is_dialled_once_more() -> None:
    """After nine failures it would otherwise have waited for eleven minutes."""
    dials = tried(1, failed=(2,))
    dials.doubt_late(2.0)
    dials.on_announced(member(2))
    (second,) = dials.step(2.0)
    dials.on_announced(member(2))
    dials.check()
    assert not dials.step(2.1)
    dials.on_ended(second, reached=False, now=2.2)
    dials.check()
    assert not dials.step(2.2)
    assert dials.next_wakeup() == 3.0
    dials.doubt_late(3.0)
    assert whom(dials, 3.0) == [member(2)]


def test_only_numbers_of_nodes_are_dialled() -> None:
    """A name would keep the tracker waiting for a resolver; 169.254.169.254 is a cloud's metadata."""
    dials = DialBacks()
    for node, address in enumerate(
        (
            "",
            "node-7:7401",
            "169.254.169.254:80",
            "[::ffff:169.254.169.254]:80",
            "[fe80::1]:80",
            "[fe80::1%eth0]:80",
            "[::1%a..b]:7401",
            "[::1%" + 70 * "a" + "]:7401",
            "[::1%\ud800]:7401",
            "0.0.0.0:7401",
            "[::ffff:0.0.0.0]:7401",
            "224.0.0.1:1",
        )
    ):
        dials.on_announced(m.Member(node, address))
    assert dials.step(1.0) == []
    good = [m.Member(20, "[2001:db8::1]:7401"), m.Member(21, "127.0.0.1:7401")]
    for one in good:
        dials.on_announced(one)
    assert whom(dials, 2.0) == good


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "10.0.0.1:0", "10.0.0.1:x", "10.0.0.1:000080" + 20 * "9"]
)
def test_an_address_that_nobody_can_dial_is_tried_all_the_same(address: str) -> None:
    """It fails at once, and people hear of the node."""
    dials = tried(1)
    dials.on_announced(m.Member(2, address))
    (one,) = dials.step(1.0)
    dials.on_ended(one, reached=False, now=1.0)
    assert dials.unreached == {2}


def moves(dials: DialBacks, tick: int) -> None:
    dials.on_announced(member(1, address=f"10.0.0.{tick % 250}:7401"))


def leaves_and_comes(dials: DialBacks, _tick: int) -> None:
    dials.forget(1)
    dials.on_announced(member(1))


def hides(dials: DialBacks, tick: int) -> None:
    dials.on_announced(member(1, address="name:1" if tick % 2 else "10.0.0.1:1"))


def stays(dials: DialBacks, _tick: int) -> None:
    dials.on_announced(member(1))


@pytest.mark.parametrize("trick", [moves, leaves_and_comes, hides, stays])
def test_nobody_has_us_dial_more_than_once_a_second_or_fills_our_memory(
    trick: Callable[[DialBacks, int], None],
) -> None:
    dials = DialBacks()
    begun = lived(dials, 0.0, 10.0, lambda tick: trick(dials, tick))
    assert len(begun) in {10, 11}
    assert all(later - sooner > 0.99 for (sooner, _), (later, _) in itertools.pairwise(begun))
    assert len(dials._due) < 250, "the times of the last second"
    assert len(dials._new.nodes) <= 1
    dials.forget(1)
    lived(dials, 10.0, 20.0)
    assert not dials._nodes


def test_deadlines_that_a_sooner_one_replaced_are_not_kept() -> None:
    """A node came back half a second after its dial, and then three, for half a day: 11,000 times were kept."""
    dials, now = tried(1, failed=(2,)), 0.0
    for turn in range(6000):
        due = now + (0.5, 3.0)[turn % 2]
        while now < due:
            now = min(due, dials.next_wakeup() or due)
            dials.doubt_late(now)
            if now == due:
                dials.on_announced(member(2))
            for one in dials.step(now):
                dials.on_ended(one, reached=False, now=now)
    dials.check()
    assert len(dials._due) < 700, "one for each second of the longest pause at most"


def test_dials_of_those_who_left_count_until_they_end() -> None:
    dials, now = DialBacks(), 0.0
    out: list[Dial] = []
    for step in range(2 * settings.AT_ONCE):
        now = 10.0 * step
        dials.on_announced(member(step, address="10.0.0.1:1"))
        dials.doubt_late(now)
        out += dials.step(now)
        dials.forget(step)
        dials.check()
    assert len(out) == settings.AT_ONCE
    dials.on_ended(out[0], reached=True, now=now)
    dials.on_announced(member(1))
    assert len(dials.step(now)) == 1


def test_a_new_node_comes_before_one_that_is_tried_again() -> None:
    dials = tried(*range(1000, 1000 + 10), failed=tuple(range(10)))
    for node in range(100, 110):
        dials.on_announced(member(node))
    dials.doubt_late(6.0)
    assert [one.node for one in whom(dials, 6.0)] == [*range(100, 110), 0]
    due = dials.next_wakeup()
    assert due == 6.0 + 1 / settings.AGAIN_RATE
    assert [one.node for one in whom(dials, due)] == [1]


def test_many_who_cannot_be_dialled_are_tried_again_slowly_and_keep_nobody_waiting() -> None:
    """Where the tracker itself is cut off, ten thousand dials in vain would take a sixth of its core."""
    dials, count = DialBacks(), 1000
    for node in range(1, count + 1):
        dials.on_announced(member(node, address=f"10.1.{node >> 8}.{node & 255}:7401"))
    now, begun = 0.0, 0
    while begun < count:
        now += 0.002
        for one in dials.step(now):
            begun += 1
            dials.on_ended(one, reached=False, now=now)
    began = now = now + 10  # all of them are due
    again, newcomers = 0, 0
    while now < began + 10:
        now += 0.002
        dials.doubt_late(now)
        if round(now * 500) % 100 == 0:
            newcomers += 1
            fresh = member(20_000 + newcomers, address=f"10.2.0.{newcomers}:7401")
            dials.on_announced(fresh)
            first, *others = dials.step(now)
            assert first.member == fresh, "a new node doesn't wait"
            dials.on_ended(first, reached=True, now=now)
        else:
            others = dials.step(now)
        for one in others:
            again += 1
            dials.on_ended(one, reached=False, now=now)
    assert newcomers == 50
    assert 0.8 * 10 * settings.AGAIN_RATE < again <= 10 * settings.AGAIN_RATE + 2


def test_newcomers_in_the_void_do_not_keep_those_waiting_that_are_tried_again() -> None:
    """Eighty pods in crash loops took all places, and nodes that had failed once were never tried again."""
    dials, now = tried(1, failed=(2,)), 0.0
    open_dials: list[tuple[float, Dial]] = []
    again: list[int] = []
    for tick in range(3000):
        now = tick / 100
        dials.on_announced(member(1000 + tick))
        dials.doubt_late(now)
        while open_dials and open_dials[0][0] <= now:
            dials.on_ended(open_dials.pop(0)[1], reached=False, now=now)
        for one in dials.step(now):
            open_dials.append((now + settings.DIAL_S, one))
            again += [round(now)] * (one.member.node == 2)
    assert again[:2] == [5, 16]


def test_those_tried_again_take_few_places_when_nobody_answers() -> None:
    count = settings.AGAIN_AT_ONCE + 20
    dials = tried(*range(1000, 1000 + 10), failed=tuple(range(10)))
    for node in range(10, count):
        dials.on_announced(member(node))
        for one in dials.step(1.0 + node):
            dials.on_ended(one, reached=False, now=1.0)
    dials.doubt_late(200.0)
    begun = [one for tick in range(count) for one in dials.step(200.0 + tick)]
    assert [one.again for one in begun] == [True] * settings.AGAIN_AT_ONCE
    assert dials.next_wakeup() is None, "the others wait for a place"


def test_a_node_that_comes_back_while_it_waits_to_be_tried_again_is_new() -> None:
    dials = tried(*range(1000, 1000 + 10), failed=tuple(range(10)))
    dials.doubt_late(6.0)
    assert [one.node for one in whom(dials, 6.0)] == [0]
    dials.on_announced(member(9))
    dials.check()
    assert [one.node for one in whom(dials, 6.0)] == [9]
    begun = [one.node for tick in range(1, 500) for one in whom(dials, 6.0 + tick / 50)]
    assert begun == [*range(1, 9)], "each once"


def test_a_storm_of_members_is_dialled_at_a_rate_and_few_at_once() -> None:
    dials = DialBacks()
    for node in range(10_000):
        dials.on_announced(member(node, address=f"{ip_address(node + 1)}:1"))
    begun, now = 0, 0.0
    while now < 10.0:
        due = dials.next_wakeup()
        assert due is not None
        now = max(now, due)
        dials.doubt_late(now)
        started = dials.step(now)
        assert len(started) <= settings.AT_ONCE
        for one in started:
            dials.on_ended(one, reached=True, now=now)
        begun += len(started)
        assert begun <= settings.BURST + settings.RATE * now + 2
    assert begun > 0.95 * 10 * settings.RATE
    started = [one for second in range(1, 9) for one in dials.step(now + second)]
    assert len(started) == settings.AT_ONCE, "those under way haven't ended"


def test_a_node_that_does_not_answer_is_doubted_until_it_does() -> None:
    dials = tried(1)
    dials.doubt_late(1.0)
    dials.on_announced(member(2))
    (second,) = dials.step(1.0)
    assert not dials.doubted
    assert dials.next_wakeup() == 1.0 + settings.DOUBT_AFTER_S
    dials.step(1.0 + settings.DOUBT_AFTER_S)
    assert not dials.doubted, "its answer may have come, and wait for us"
    dials.doubt_late(1.0 + settings.DOUBT_AFTER_S)
    assert (dials.doubted, dials.unreached) == ({2}, set())
    assert dials.changes() == ([2], [])
    dials.on_ended(second, reached=True, now=1.2)
    assert not dials.doubted
    assert dials.changes() == ([2], [])


def test_of_whom_something_is_known_nothing_is_doubted_while_it_is_dialled_again() -> None:
    dials = tried(1, 2)
    dials.on_announced(member(2))
    (second,) = dials.step(2.0)
    dials.doubt_late(3.0)
    assert not dials.doubted, "it was reached"
    dials.on_ended(second, reached=False, now=3.0)
    assert dials.unreached == {2}
    dials.on_announced(member(2))
    dials.step(4.0)
    dials.doubt_late(5.0)
    assert dials.unreached == {2}, "it wasn't, and isn't silent for a moment only"


def test_a_node_that_fails_is_reported_once_and_tried_again_less_and_less() -> None:
    dials = tried(1, failed=(2,))
    assert (dials.doubted, dials.unreached) == ({2}, {2})
    assert dials.changes() == ([2], [2])
    assert [dials.should_tell(node) for node in (2, 2, 1, 7)] == [True, False, False, False]
    pauses, now = [], 0.0
    for _ in range(12):
        begun: list[Dial] = []
        due = now
        while not begun:
            due = dials.next_wakeup() or due
            dials.doubt_late(due)
            begun = dials.step(due)
        pauses.append(due - now)
        now = due
        assert dials.unreached == {2}
        dials.on_ended(begun[0], reached=False, now=now)
        assert dials.changes() == ([], [2])
        assert not dials.should_tell(2)
    assert pauses[:3] == [5.0, 10.0, 20.0]
    assert pauses[-1] == 640.0
    dials.on_announced(member(2))
    (again,) = dials.step(now + 1.0)  # it came back: sooner than in eleven minutes
    dials.on_ended(again, reached=True, now=now + 1.0)
    assert not dials.doubted | dials.unreached
    dials.on_announced(member(2))
    (again,) = dials.step(now + 2.0)
    dials.on_ended(again, reached=False, now=now + 2.0)
    assert dials.should_tell(2), "it had been reached"
    dials.doubt_late(now + 6.0)
    assert dials.next_wakeup() == now + 2.0 + settings.AGAIN_S, "the first failure since"
    dials.on_announced(member(2, address="10.9.9.9:1"))
    (again,) = dials.step(now + 6.0)
    dials.on_ended(again, reached=False, now=now + 6.0)
    assert dials.should_tell(2), "at another address"
    dials.on_untold(2)
    assert dials.should_tell(2), "nobody heard"
    dials.check()


def test_a_tracker_that_reaches_hardly_anybody_says_nothing() -> None:
    assert not tried(failed=(1, 2, 3)).doubted
    assert not tried(1, failed=(2, 3)).doubted
    assert tried(1, 2, failed=(3, 4)).unreached == {3, 4}
    dials = tried(1, failed=(2,))
    dials.on_announced(member(3))
    (third,) = dials.step(1.0)
    dials.on_ended(third, reached=False, now=1.0)
    assert not dials.doubted, "two against one"
    assert dials.changes() == ([2], [])
    assert not dials.should_tell(2)


def test_one_node_at_the_balance_does_not_turn_a_site_over_and_over() -> None:
    dials = tried(*range(10), failed=tuple(range(100, 110)))
    assert len(dials.unreached) == 10
    for step in range(1, 5):
        dials.on_announced(member(0, site="elsewhere" if step % 2 else ""))
        for one in dials.step(2.0 * step):
            dials.on_ended(one, reached=True, now=2.0 * step)
        assert len(dials.unreached) == 10
    for node in range(3):
        dials.forget(node)
    assert not dials.unreached


def test_sites_speak_for_themselves() -> None:
    dials = tried(1, 2, site="here")
    for node in (3, 4):
        dials.on_announced(member(node, site="behind NAT"))
    for one in dials.step(1.0):
        dials.on_ended(one, reached=False, now=1.0)
    assert not dials.doubted


def test_a_node_that_moves_or_leaves_is_judged_anew() -> None:
    dials = tried(1, failed=(2,))
    dials.on_announced(member(2))
    (before,) = dials.step(2.0)
    dials.on_announced(member(2, address="10.9.9.9:1"))
    assert not dials.unreached
    dials.doubt_late(3.0)
    (again,) = dials.step(3.0)
    assert again.member.address == "10.9.9.9:1"
    dials.on_ended(before, reached=False, now=3.1)
    assert not dials.unreached, "an answer from before"
    dials.forget(2)
    dials.on_ended(again, reached=False, now=3.2)
    dials.check()
    assert not dials.unreached
    dials.on_announced(member(2))
    assert whom(dials, 5.0) == [member(2)]


def test_a_node_that_moves_to_and_fro_is_judged_by_its_last_dial() -> None:
    dials = tried(1)
    dials.on_announced(member(2))
    (first,) = dials.step(1.0)
    dials.on_announced(member(2, address="10.9.9.9:1"))
    dials.on_announced(member(2))
    dials.doubt_late(2.0)
    (second,) = dials.step(2.0)
    dials.on_ended(first, reached=False, now=2.1)
    assert not dials.unreached
    dials.on_ended(second, reached=True, now=2.2)
    dials.doubt_late(60.0)
    assert not dials.step(60.0)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from("aabcfrw"), st.booleans(), st.booleans()))
)
def test_any_story(steps: list[tuple[int, str, bool, bool]]) -> None:
    dials, now = DialBacks(), 0.0
    out: list[Dial] = []
    begun: dict[int, float] = {}
    for node, what, flag, pause in steps:
        now += 0.53 if pause else 0.03
        match what:
            case "a":
                dials.on_announced(member(node, site="x" if flag else ""))
            case "b":
                dials.on_announced(member(node, address=f"10.1.1.{node}:1" if flag else "name:1"))
            case "f":
                dials.forget(node)
            case "c":
                for one in dials.changes()[1]:
                    dials.should_tell(one)
            case "w":
                now += 6.0
            case _ if out:
                dials.on_ended(out.pop(node % len(out)), reached=flag, now=now)
        dials.doubt_late(now)
        for dial in dials.step(now):
            assert now - begun.get(dial.member.node, -inf) >= settings.LEAST_PAUSE_S
            begun[dial.member.node] = now
            out.append(dial)
        dials.check()
        assert (later := dials.next_wakeup()) is None or later > now
