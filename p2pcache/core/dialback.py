"""Whether members can be dialled where they say: the tracker tries it. Pure.

A node behind a firewall, or one that advertises an address of somebody else, pulls like the others, but nobody gets
what it has. That was noticed when others had waited for it for 8 s (decision 0020), and not at all if nobody had to.
The idea is AutoNAT's, of libp2p: who is dialled back knows in a moment (decision 0030).
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from ipaddress import ip_address
from math import inf

from p2pcache.core.messages import Member

AT_ONCE = 256  # dials under way; one into the void keeps its place for `DIAL_S`
AGAIN_AT_ONCE = 64  # beside these nobody is tried again: who is new comes first
RATE = (
    500.0  # a second: about a sixth of the tracker's core, while ten thousand announce themselves
)
BURST = 64
AGAIN_RATE = (
    50.0  # ... of those who are tried again: all of them, where the tracker itself is cut off
)
LEAST_PAUSE_S = 1.0  # between two dials of one node, whatever it announces
DIAL_S = 1.25  # without an answer it has failed: a lost SYN is sent again after a second
# Without an answer others get the leases; who answers later has lost nothing. At 25 Gbit/s 75 runs are read in 0.1 s.
DOUBT_AFTER_S = 0.05
# Who can't be dialled is tried again, as somebody may have opened the port; after twice as long each time, but where
# the tracker reaches nobody that is at least a dial in eleven minutes for each.
AGAIN_S = 5.0
LAST_DOUBLING = 7
DISBELIEVED = 0.8  # of those that failed are reached: fewer, or one node at the balance would turn a site over and over


class _Word(Enum):
    """What is known of a node."""

    NOTHING = auto()
    SILENT = auto()  # it hasn't answered for a moment
    REACHED = auto()
    FAILED = auto()


@dataclass(slots=True)
class _Tried:
    member: Member
    word: _Word = _Word.NOTHING
    since: float = -1.0  # of the dial under way; negative: there is none
    line: deque[int] | None = None  # where it stands
    failures: int = 0  # in a row
    begun: float = -inf  # the last dial
    not_before: float = -inf  # the next one


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


class DialBacks:
    """Who is to be dialled, and who is believed to be out of the others' reach.

    The tracker's own place may be what is wrong (a network policy, another site behind NAT). So failures count
    only among nodes of one site, and only while as many there were reached.

    Invariants (`check`): `unreached` <= `doubted`; `doubted` are exactly the silent and failed nodes of sites that
    are believed; no more dials are open than `AT_ONCE`.
    """

    def __init__(self) -> None:
        """Nobody yet."""
        self.doubted: set[int] = set()  # others get leases before these
        self.unreached: set[int] = set()  # of them: their dial has failed
        self._nodes: dict[int, _Tried] = {}
        self._new: deque[int] = deque()
        self._again: deque[int] = deque()
        self._open = 0  # dials that haven't ended, of whomever
        self._due: list[tuple[float, int]] = []  # when to look at a node again
        self._paid_until = 0.0  # of the rate
        self._again_from = 0.0  # of the next that is tried again
        self._sites: dict[str, _Site] = {}
        self._changed: set[int] = set()  # see `changes`
        self._told: set[int] = set()  # of them; once each until it is reached

    def announced(self, member: Member) -> None:
        """A member connected. What is known of it stays until it is known better, unless it has moved."""
        node = member.node
        known = self._nodes.get(node)
        if known is not None and (known.member.address, known.member.site) != (
            member.address, member.site,
        ):  # fmt: skip
            begun = known.begun
            self.forget(node)
            known = self._nodes[node] = _Tried(member, begun=begun)
        if not _can_be_tried(member.address):
            self.forget(node)
            return
        if known is None:
            known = self._nodes[node] = _Tried(member)
        known.not_before = known.begun + LEAST_PAUSE_S
        if known.since < 0 and known.line is not self._new:
            _queue(node, known, self._new)

    def forget(self, node: int) -> None:
        """It is gone."""
        known = self._nodes.pop(node, None)
        self._told.discard(node)
        if known is not None:
            self._say(node, known, _Word.NOTHING)

    def answered(self, member: Member, *, reached: bool, now: float) -> None:
        """A dial has ended; each that `step` named does, once."""
        self._open -= 1
        known = self._nodes.get(member.node)
        if known is None or known.member != member or known.since < 0:
            return  # it left meanwhile, or has moved
        known.since = -1.0
        self._say(member.node, known, _Word.REACHED if reached else _Word.FAILED)
        if reached:
            known.failures = 0
            self._told.discard(member.node)
        else:
            known.not_before = now + AGAIN_S * 2.0 ** min(known.failures, LAST_DOUBLING)
            known.failures += 1
            heapq.heappush(self._due, (known.not_before, member.node))

    def late(self, now: float) -> None:
        """Doubt who hasn't answered. Only when answers that have come were taken in: a busy tracker is late itself."""
        while self._due and self._due[0][0] <= now:
            _, node = heapq.heappop(self._due)
            known = self._nodes.get(node)
            if known is None:
                continue
            if known.since >= 0:
                if known.word is _Word.NOTHING and known.since + DOUBT_AFTER_S <= now:
                    self._say(node, known, _Word.SILENT)
            elif known.not_before <= now:
                if known.line is self._new:
                    self._new.append(node)  # it came back sooner than it could be dialled again
                elif known.line is None and known.word is _Word.FAILED:
                    _queue(node, known, self._again)

    def step(self, now: float) -> list[Member]:
        """Whom to dial now."""
        begun: list[Member] = []
        while (line := self._line) and self._free_at(line) <= now:
            node = line.popleft()
            known = self._nodes.get(node)
            if known is None or known.line is not line:
                continue
            if known.not_before > now:
                heapq.heappush(self._due, (known.not_before, node))
                continue
            known.line, known.since, known.begun = None, now, now
            self._open += 1
            self._paid_until = max(self._paid_until, now) + 1 / RATE
            if line is self._again:
                self._again_from = now + 1 / AGAIN_RATE
            heapq.heappush(self._due, (now + DOUBT_AFTER_S, node))
            begun.append(known.member)
        return begun

    def changes(self) -> tuple[list[int], list[int]]:
        """Nodes of which something else is thought since it was asked last, and those that people should hear of."""
        changed, self._changed = sorted(self._changed), set()
        fresh = [node for node in changed if node in self.unreached and node not in self._told]
        self._told.update(fresh)
        return changed, fresh

    def next_wakeup(self) -> float | None:
        """When `late` and `step` have something to do."""
        times = [self._due[0][0]] if self._due else []
        if line := self._line:
            times.append(self._free_at(line))
        return min(times, default=None)

    def check(self) -> None:
        """Assert the invariants; O(nodes)."""
        assert self.unreached <= self.doubted <= self._nodes.keys()
        assert sum(known.since >= 0 for known in self._nodes.values()) <= self._open <= AT_ONCE
        assert all(any(site.words.values()) for site in self._sites.values())
        for node, known in self._nodes.items():
            site = self._sites.get(known.member.site, _Site())
            said = [word for word, nodes in site.words.items() if node in nodes]
            assert said == [known.word] * (known.word is not _Word.NOTHING)
            assert (node in self.doubted) == site.doubts(node)

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _line(self) -> deque[int]:
        """Who is next: those who are new, then those who are tried again; empty if all places are taken."""
        if self._new and self._open < AT_ONCE:
            return self._new
        return self._again if self._open < AGAIN_AT_ONCE else deque()

    def _free_at(self, line: deque[int]) -> float:
        burst_over = self._paid_until - BURST / RATE
        return max(burst_over, self._again_from) if line is self._again else burst_over

    def _say(self, node: int, known: _Tried, word: _Word) -> None:
        """This is known of it from now on, and with it perhaps of the whole site."""
        site = self._sites.setdefault(known.member.site, _Site())
        words, before = site.words, site.believed
        words[known.word].discard(node)
        known.word = word
        if word is not _Word.NOTHING:
            words[word].add(node)
        site.judge()
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


def _queue(node: int, known: _Tried, line: deque[int]) -> None:
    known.line = line
    line.append(node)


def _can_be_tried(address: str) -> bool:
    """Whether this is a number that a node can have. A name would keep the tracker waiting for a resolver."""
    host, _, port = address.rpartition(":")
    try:
        number = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    wrong = number.is_link_local or number.is_multicast or number.is_unspecified
    return port.isascii() and port.isdigit() and not wrong
