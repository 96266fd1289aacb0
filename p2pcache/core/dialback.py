"""Whether members can be dialled where they say: the tracker tries it. Pure.

A node behind a firewall, or one that advertises an address of somebody else, pulls like the others, but nobody gets
what it has. That was noticed when others had waited for it for 8 s (decision 0020), and not at all if nobody had to.
The idea is AutoNAT's, of libp2p: who is dialled back knows in a moment (decision 0030).
"""

import heapq
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from p2pcache.core.messages import Member

AT_ONCE = 64  # dials under way; one into the void takes seconds
RATE = 500.0  # a second: a tenth of the tracker's core while ten thousand announce themselves
BURST = 64
DIAL_S = 1.25  # without an answer it has failed: a lost SYN is sent again after a second
# Without an answer others get the leases; who answers later has lost nothing. At 25 Gbit/s 75 runs are read in 0.1 s.
DOUBT_AFTER_S = 0.05
# Who can't be dialled is tried again, as somebody may have opened the port; after twice as long each time, but where
# the tracker reaches nobody that is at least a dial in eleven minutes for each.
AGAIN_S = 5.0
LAST_DOUBLING = 7


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
    queued: bool = False
    failures: int = 0  # in a row
    again_at: float = 0.0  # the next try after a failure


class DialBacks:
    """Who is to be dialled, and who is believed to be out of the others' reach.

    The tracker's own place may be what is wrong (a network policy, another site behind NAT). So failures count
    only among nodes of one site, and only while as many there were reached.

    Invariants (`check`): `unreached` <= `doubted`; `doubted` are exactly the silent and failed nodes of sites that
    are believed; `_under_way` are those with a dial.
    """

    def __init__(self) -> None:
        """Nobody yet."""
        self.doubted: set[int] = set()  # others get leases before these
        self.unreached: set[int] = set()  # of them: their dial has failed
        self._nodes: dict[int, _Tried] = {}
        self._queue: deque[int] = deque()
        self._under_way: set[int] = set()
        self._due: list[tuple[float, int]] = []  # when to look at a node again
        self._paid_until = 0.0  # of the rate
        self._sites: dict[str, dict[_Word, set[int]]] = {}
        self._changed: set[int] = set()  # see `changes`
        self._told: set[int] = set()  # of them; once each until it is reached

    def announced(self, member: Member) -> None:
        """A member connected. What is known of it stays until it is known better, unless it has moved."""
        node = member.node
        known = self._nodes.get(node)
        if known is not None and (known.member.address, known.member.site) != (
            member.address, member.site,
        ):  # fmt: skip
            self.forget(node)
            known = None
        if not member.address:
            return  # it doesn't say that it can be dialled
        if known is None:
            known = self._nodes[node] = _Tried(member)
        self._enqueue(node, known)

    def forget(self, node: int) -> None:
        """It is gone."""
        known = self._nodes.pop(node, None)
        self._told.discard(node)
        if known is not None:
            self._under_way.discard(node)
            self._say(node, known, _Word.NOTHING)

    def answered(self, member: Member, *, reached: bool, now: float) -> None:
        """A dial has ended."""
        known = self._nodes.get(member.node)
        if known is None or known.member != member or known.since < 0:
            return  # it left meanwhile, or has moved
        known.since = -1.0
        self._under_way.discard(member.node)
        self._say(member.node, known, _Word.REACHED if reached else _Word.FAILED)
        if reached:
            known.failures = 0
            self._told.discard(member.node)
        else:
            known.again_at = now + AGAIN_S * 2.0 ** min(known.failures, LAST_DOUBLING)
            known.failures += 1
            heapq.heappush(self._due, (known.again_at, member.node))

    def step(self, now: float) -> list[Member]:
        """Whom to dial now."""
        while self._due and self._due[0][0] <= now:
            _, node = heapq.heappop(self._due)
            known = self._nodes.get(node)
            if known is None:
                continue
            if known.word is _Word.FAILED:
                if known.again_at <= now:
                    self._enqueue(node, known)
            elif (
                known.word is _Word.NOTHING
                and known.since >= 0
                and known.since + DOUBT_AFTER_S <= now
            ):
                self._say(node, known, _Word.SILENT)
        begun: list[Member] = []
        while self._queue and self._free_at <= now and len(self._under_way) < AT_ONCE:
            node = self._queue.popleft()
            known = self._nodes.get(node)
            if known is None or not known.queued:
                continue
            known.queued, known.since = False, now
            self._under_way.add(node)
            self._paid_until = max(self._paid_until, now) + 1 / RATE
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
        """When `step` has something to do."""
        times = [self._due[0][0]] if self._due else []
        if self._queue and len(self._under_way) < AT_ONCE:
            times.append(self._free_at)
        return min(times, default=None)

    def check(self) -> None:
        """Assert the invariants; O(nodes)."""
        assert self.unreached <= self.doubted <= self._nodes.keys()
        assert self._under_way == {n for n, known in self._nodes.items() if known.since >= 0}
        for node, known in self._nodes.items():
            words = self._sites.get(known.member.site, {})
            assert [word for word, nodes in words.items() if node in nodes] == [
                known.word
            ] * (known.word is not _Word.NOTHING)  # fmt: skip
            doubtful = known.word in {_Word.SILENT, _Word.FAILED}
            assert (node in self.doubted) == (doubtful and _believed(words))
        assert all(any(words.values()) for words in self._sites.values())

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _free_at(self) -> float:
        return self._paid_until - BURST / RATE

    def _enqueue(self, node: int, known: _Tried) -> None:
        if not known.queued and known.since < 0:
            known.queued = True
            self._queue.append(node)

    def _say(self, node: int, known: _Tried, word: _Word) -> None:
        """This is known of it from now on, and with it perhaps of the whole site."""
        site = known.member.site
        words = self._sites.setdefault(site, {one: set() for one in _Word})
        before = _believed(words)
        words[known.word].discard(node)
        known.word = word
        if word is not _Word.NOTHING:
            words[word].add(node)
        believed = _believed(words)
        touched = (
            {node} if believed == before else {node, *words[_Word.SILENT], *words[_Word.FAILED]}
        )
        for one in touched:
            doubted = believed and (one in words[_Word.SILENT] or one in words[_Word.FAILED])
            if doubted != (one in self.doubted):
                self._changed.add(one)
                (self.doubted.add if doubted else self.doubted.discard)(one)
            failed = doubted and one in words[_Word.FAILED]
            if failed != (one in self.unreached):
                self._changed.add(one)
                (self.unreached.add if failed else self.unreached.discard)(one)
        if not any(words.values()):
            del self._sites[site]


def _believed(words: dict[_Word, set[int]]) -> bool:
    """Whether the tracker is where it can tell."""
    return len(words[_Word.REACHED]) >= max(1, len(words[_Word.FAILED]))
