"""Whether members can be dialled where they say: the tracker tries it. Pure.

A node behind a firewall, or one that advertises an address of somebody else, pulls like the others, but nobody gets
what it has. That was noticed when others had waited for it for 8 s (decision 0020), and not at all if nobody had to.
The idea is AutoNAT's, of libp2p: who is dialled back knows in a moment (decision 0030).
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum, auto
from ipaddress import IPv6Address, ip_address
from math import inf
from typing import NamedTuple

from p2pcache.core import backoff
from p2pcache.core.protocol import address as addresses
from p2pcache.core.protocol.messages import Member
from p2pcache.errors import RemoteProtocolError

AT_ONCE = 256  # dials under way; one into the void keeps its place for `DIAL_S`
RATE = 500.0  # a second: a sixth of the tracker's core, while ten thousand announce themselves
BURST = 64
# Who failed is tried again beside those who are new, so that neither keeps the others waiting. Where the tracker itself
# is cut off that is everybody.
AGAIN_AT_ONCE = 64
AGAIN_RATE = 50.0
LEAST_PAUSE_S = 1.0  # between two dials of one node, whatever it announces
DIAL_S = 1.25  # without an answer it has failed: a lost SYN is sent again after a second
# Without an answer others get the leases; who answers later has lost nothing. At 25 Gbit/s 75 runs are read in 0.1 s.
DOUBT_AFTER_S = 0.05
# Who can't be dialled is tried again, as somebody may have opened the port; after twice as long each time, but where
# the tracker reaches nobody that is at least a dial in eleven minutes for each.
AGAIN_S = 5.0
LAST_AGAIN_S = 640.0
DISBELIEVED = 0.8  # of those that failed are reached: fewer, or one node at the balance would turn a site over and over


class Dial(NamedTuple):
    """One attempt."""

    number: int
    member: Member
    again: bool  # the last one failed


class _Word(Enum):
    """What is known of a node."""

    NOTHING = auto()
    SILENT = auto()  # it hasn't answered for a moment
    REACHED = auto()
    FAILED = auto()


@dataclass(slots=True)
class _Tried:
    member: Member
    here: bool = True  # no: it left, or can't be dialled there; it is kept for `LEAST_PAUSE_S`
    word: _Word = _Word.NOTHING
    wanted: bool = False  # it has announced itself since its last dial began
    dial: int = 0  # the number of the one under way; 0: there is none
    begun: float = -inf  # the last one
    again_at: float = inf  # it has failed, and is tried again then
    failures: int = 0  # in a row
    told: bool = False  # people were, since it was reached last
    look_at: float = inf  # of its times in `_due` the one that counts, the soonest


@dataclass(slots=True)
class _Site:
    """What is known of the nodes of one place; `believed`: the tracker is where it can tell."""

    words: dict[_Word, set[int]] = field(default_factory=lambda: {word: set() for word in _Word})
    believed: bool = False

    def judge(self) -> None:
        reached, failed = len(self.words[_Word.REACHED]), len(self.words[_Word.FAILED])
        enough = max(1.0, failed * (DISBELIEVED if self.believed else 1.0))
        self.believed = reached >= enough

    def doubts(self, node: int) -> bool:
        return self.believed and (
            node in self.words[_Word.SILENT] or node in self.words[_Word.FAILED]
        )


class _Line:
    """Nodes that wait to be dialled: so many a second, so many at once."""

    def __init__(self, rate: float, burst: int, at_once: int) -> None:
        self._rate = rate
        self._burst_s = (burst - 1) / rate
        self._at_once = at_once
        self._paid_until = -inf
        self.nodes: OrderedDict[int, None] = OrderedDict()  # whoever leaves, leaves the line
        self.open = 0  # dials that haven't ended, of whomever

    @property
    def free_at(self) -> float:
        """When the next one may begin; inf: nobody waits, or all places are taken."""
        if not self.nodes or self.open >= self._at_once:
            return inf
        return self._paid_until - self._burst_s

    def begin(self, now: float) -> None:
        """One has begun."""
        self.open += 1
        self._paid_until = max(self._paid_until, now) + 1 / self._rate


class DialBacks:
    """Who is to be dialled, and who is believed to be out of the others' reach.

    The tracker's own place may be what is wrong (a network policy, another site behind NAT). So failures count
    only among nodes of one site, and only while as many there were reached.

    Invariants (`check`): `unreached` <= `doubted`; `doubted` are exactly the silent and failed nodes of sites that
    are believed; `reached` are those whose last dial was answered; each dial under way has a place of its line; who is
    wanted or has failed, and isn't being dialled, is in a line or will be looked at.
    """

    def __init__(self) -> None:
        """Nobody yet."""
        self.doubted: set[int] = set()  # others get leases before these
        self.unreached: set[int] = set()  # of them: their dial has failed
        self.reached: set[int] = set()  # whatever is thought of the others
        self._nodes: dict[int, _Tried] = {}
        self._new = _Line(RATE, BURST, AT_ONCE)
        self._again = _Line(AGAIN_RATE, 1, AGAIN_AT_ONCE)
        self._dials = 0  # so far: their numbers
        self._due: list[tuple[float, int]] = []  # when to look at a node again
        self._sites: dict[str, _Site] = {}
        self._changed: set[int] = set()  # see `changes`
        self._failed: set[int] = set()  # if it was away when it failed before, people weren't told

    def announced(self, member: Member) -> None:
        """A member connected. What is known of it stays until it is known better, unless it has moved."""
        node = member.node
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = _Tried(member)
        elif (known.member.address, known.member.site) != (member.address, member.site):
            self._know_nothing(node, known)
            known.member, known.told = member, False
        known.here = _can_be_tried(member.address)
        if not known.here:
            self.forget(node)
            return
        known.wanted = True
        self._again.nodes.pop(node, None)
        if not known.dial:
            self._new.nodes[node] = None

    def forget(self, node: int) -> None:
        """It is gone."""
        known = self._nodes.get(node)
        if known is not None:
            known.here = False
            self._know_nothing(node, known)
            if known.begun == -inf:
                del self._nodes[node]
            else:
                self._look(node, known)

    def answered(self, dial: Dial, *, reached: bool, now: float) -> None:
        """A dial has ended; each that `step` named does, once."""
        (self._again if dial.again else self._new).open -= 1
        node = dial.member.node
        known = self._nodes.get(node)
        if known is None or known.dial != dial.number:
            return  # it left meanwhile, or has moved
        known.dial = 0
        self._say(node, known, _Word.REACHED if reached else _Word.FAILED)
        if reached:
            known.failures, known.again_at, known.told = 0, inf, False
        else:
            known.again_at = now + backoff.pause_s(AGAIN_S, LAST_AGAIN_S, known.failures)
            known.failures += 1
            self._failed.add(node)
        self._look(node, known)

    def late(self, now: float) -> None:
        """Doubt who hasn't answered. Only when answers that have come were taken in: a busy tracker is late itself."""
        while self._due and self._due[0][0] <= now:
            when, node = heapq.heappop(self._due)
            known = self._nodes.get(node)
            if known is None or known.look_at != when:
                continue  # it was to be looked at sooner, and has been
            known.look_at = inf
            if self._next_look(node, known) > now:
                pass  # something has happened since
            elif known.dial:
                self._say(node, known, _Word.SILENT)
            elif not known.here:
                del self._nodes[node]
                continue
            else:
                (self._new if known.wanted else self._again).nodes[node] = None
            self._look(node, known)

    def step(self, now: float) -> list[Dial]:
        """Whom to dial now."""
        begun: list[Dial] = []
        for line in (self._new, self._again):
            while line.free_at <= now:
                node, _ = line.nodes.popitem(last=False)
                known = self._nodes[node]
                if known.begun + LEAST_PAUSE_S > now:
                    self._look(node, known)
                    continue
                self._dials += 1
                known.dial, known.begun, known.wanted = self._dials, now, False
                line.begin(now)
                self._look(node, known)
                begun.append(Dial(self._dials, known.member, line is self._again))
        return begun

    def changes(self) -> tuple[list[int], list[int]]:
        """Since it was asked last: of whom something else is thought, and who has failed (again) and is unreached."""
        changed, failed = self._changed, self._failed
        self._changed, self._failed = set(), set()
        return sorted(changed), sorted((changed | failed) & self.unreached)

    def tell(self, node: int) -> bool:
        """Whether people should hear that this one isn't reached; once, until it is."""
        fresh = node in self.unreached and not self._nodes[node].told
        if fresh:
            self._nodes[node].told = True
        return fresh

    def untold(self, node: int) -> None:
        """They didn't: there was too much to hear. It is to be told when it has failed again."""
        if node in self._nodes:
            self._nodes[node].told = False

    def next_wakeup(self) -> float | None:
        """When `late` and `step` have something to do."""
        due = self._due[0][0] if self._due else inf
        wakeup = min(due, self._new.free_at, self._again.free_at)
        return None if wakeup == inf else wakeup

    def check(self) -> None:
        """Assert the invariants; O(nodes)."""
        assert self.unreached <= self.doubted <= self._nodes.keys()
        assert sum(known.dial > 0 for known in self._nodes.values()) <= (
            self._new.open + self._again.open
        )
        assert all(any(site.words.values()) for site in self._sites.values())
        assert self._new.nodes.keys() | self._again.nodes.keys() <= self._nodes.keys()
        due = set(self._due)
        for node, known in self._nodes.items():
            site = self._sites.get(known.member.site, _Site())
            said = [word for word, nodes in site.words.items() if node in nodes]
            assert said == [known.word] * (known.word is not _Word.NOTHING)
            assert (node in self.doubted) == site.doubts(node)
            assert (node in self.reached) == (known.word is _Word.REACHED)
            lines = (node in self._new.nodes) + (node in self._again.nodes)
            assert lines <= (known.here and not known.dial)
            assert known.look_at <= self._next_look(node, known)
            assert known.look_at == inf or (known.look_at, node) in due

    # -- inside ------------------------------------------------------------------------------------

    def _look(self, node: int, known: _Tried) -> None:
        """See to it that `late` comes by when there is something to do."""
        when = self._next_look(node, known)
        if when < known.look_at:
            known.look_at = when
            heapq.heappush(self._due, (when, node))

    def _next_look(self, node: int, known: _Tried) -> float:
        if known.dial:
            return known.begun + DOUBT_AFTER_S if known.word is _Word.NOTHING else inf
        if not known.here or known.wanted:
            return inf if node in self._new.nodes else known.begun + LEAST_PAUSE_S
        return inf if node in self._again.nodes else known.again_at

    def _know_nothing(self, node: int, known: _Tried) -> None:
        """It isn't there any more; the end of its dial says nothing."""
        self._new.nodes.pop(node, None)
        self._again.nodes.pop(node, None)
        known.wanted, known.dial, known.failures, known.again_at = False, 0, 0, inf
        self._say(node, known, _Word.NOTHING)

    def _say(self, node: int, known: _Tried, word: _Word) -> None:
        """This is known of it from now on, and with it perhaps of the whole site."""
        site = self._sites.setdefault(known.member.site, _Site())
        words, before = site.words, site.believed
        words[known.word].discard(node)
        known.word = word
        if word is not _Word.NOTHING:
            words[word].add(node)
        site.judge()
        (self.reached.add if word is _Word.REACHED else self.reached.discard)(node)
        touched = {node}
        if site.believed != before:
            touched |= words[_Word.SILENT] | words[_Word.FAILED]
        for one in touched:
            doubted = site.doubts(one)
            failed = doubted and one in words[_Word.FAILED]
            for kept, belongs in ((self.doubted, doubted), (self.unreached, failed)):
                if belongs != (one in kept):
                    self._changed.add(one)
                    (kept.add if belongs else kept.discard)(one)
        if not any(words.values()):
            del self._sites[known.member.site]


def _can_be_tried(address: str) -> bool:
    """Whether this is a number that a node can have. A name would keep the tracker waiting for a resolver."""
    try:
        host, _ = addresses.split(address)
    except RemoteProtocolError:
        return bool(address)  # nobody can dial that, and the attempt ends at once
    try:
        number = ip_address(host)
    except ValueError:
        return False
    if isinstance(number, IPv6Address):
        if number.scope_id is not None:
            return False  # a name of one of our interfaces
        number = number.ipv4_mapped or number
    return not (number.is_link_local or number.is_multicast or number.is_unspecified)
