"""One value says whether others get at a member; dials and complaints are its evidence."""

from math import inf

import pytest

from p2pcache.core.membership.member_record import MemberRecord, Reach
from p2pcache.core.membership.reachability import DialBacks, Reachability
from p2pcache.core.membership.settings import VERDICT_S
from p2pcache.core.protocol.messages import Member

HOLDER = 9


class Swarm:
    """Members, of which some were dialled."""

    def __init__(
        self, *reached: int, failed: tuple[int, ...] = (), others: tuple[int, ...] = ()
    ) -> None:
        self.dials = DialBacks()
        self.changed: list[int] = []
        nodes = (*reached, *failed, *others)
        self.members = {node: MemberRecord(Member(node, f"10.0.0.{node}:1")) for node in nodes}
        for node in (*reached, *failed):
            self.dials.on_announced(self.members[node].member, 0.0)
        for dial in self.dials.step(0.0):
            self.dials.on_ended(dial, reached=dial.member.node in reached, now=0.0)
        self.reach = Reachability(
            self.members, self.dials, self.note, bearer=lambda node: node % 100
        )
        for record in self.members.values():
            self.reach.review(record, 0.0)
        self.settle()

    def note(self, record: MemberRecord, _: float) -> None:
        self.changed.append(record.node)

    def settle(self) -> None:
        self.dials.changed.clear()
        self.changed.clear()
        self.reach.check()

    def complain(self, *nodes: int, now: float = 1.0) -> bool:
        """These members wait in vain for what the holder has."""
        waiting = self.reach.witnesses(node for node in self.members if node != HOLDER)
        record = self.members[HOLDER]
        fresh = [self.reach.on_complaint(record, node, waiting, now) for node in nodes]
        self.settle()
        return any(fresh)

    def holder(self) -> Reach:
        return self.members[HOLDER].reach


def test_dials_alone_say_it_while_nobody_complains() -> None:
    swarm = Swarm(1, failed=(2,), others=(3,))
    reach = {node: record.reach for node, record in swarm.members.items()}
    assert reach == {1: Reach.REACHABLE, 2: Reach.UNREACHABLE, 3: Reach.UNKNOWN}
    assert swarm.reach.lost == {2}
    assert not swarm.members[2].void, "only the tracker may not reach it"


def test_two_complaints_are_believed_for_a_while() -> None:
    swarm = Swarm(1, 2, HOLDER)
    assert not swarm.complain(1, 1)
    assert swarm.holder() is Reach.REACHABLE
    assert swarm.complain(2)
    assert not swarm.complain(1, 2), "people are told once"
    assert (swarm.holder(), swarm.members[HOLDER].void) == (Reach.UNREACHABLE, True)
    assert swarm.reach.look_at == 1.0 + VERDICT_S
    swarm.reach.end_verdicts(VERDICT_S)
    assert swarm.holder() is Reach.UNREACHABLE
    swarm.reach.end_verdicts(1.0 + VERDICT_S)
    swarm.settle()
    assert (swarm.holder(), swarm.members[HOLDER].void) == (Reach.REACHABLE, False)
    assert not swarm.complain(2), "the first complaint is void, too"


@pytest.mark.parametrize(
    ("swarm", "who"),
    [
        pytest.param(Swarm(1, 2, 3, failed=(HOLDER,)), 1, id="the dial failed, too"),
        pytest.param(Swarm(1, HOLDER), 1, id="no other could complain"),
        pytest.param(Swarm(1, 101, HOLDER), 1, id="all others are of one bearer"),
    ],
)
def test_one_complaint_is_enough(swarm: Swarm, who: int) -> None:
    assert swarm.complain(who)


def test_a_verdict_on_a_member_that_cannot_be_dialled_is_news_too() -> None:
    """Else what it has counted on where nobody else wants anything: its reach is the same, but its claims are void."""
    swarm = Swarm(1, failed=(HOLDER,))
    record = swarm.members[HOLDER]
    assert swarm.reach.on_complaint(record, 1, {1}, 1.0)
    assert swarm.changed == [HOLDER]
    swarm.reach.acquit(record, 2.0)
    assert swarm.changed == [HOLDER, HOLDER]


def test_a_bearer_of_two_nodes_is_one_witness_and_so_is_one_that_left() -> None:
    swarm = Swarm(1, 101, 2, HOLDER)
    assert not swarm.complain(1, 101)
    for node in (1, 101):
        del swarm.members[node]
    swarm.members[3] = MemberRecord(Member(3, ""))
    assert not swarm.complain(2)


def test_a_banned_member_gives_nothing_whatever_the_dials_say() -> None:
    swarm = Swarm(1, HOLDER)
    record = swarm.members[HOLDER]
    record.verdict_until = inf
    swarm.reach.review(record, 0.0)
    swarm.settle()
    assert (swarm.holder(), record.void) == (Reach.UNREACHABLE, True)
    assert not swarm.complain(1)
    record.verdict_until = 0.0
    swarm.reach.review(record, 0.0)
    assert swarm.holder() is Reach.REACHABLE
