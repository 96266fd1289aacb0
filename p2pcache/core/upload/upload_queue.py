"""Which upload a node starts next, and when it says BUSY instead.

Pure: the daemon and the simulator run this same code.

A peer's requests are served one after the other (they share one connection, so two at once would
only delay the first), and slots go round the peers that wait. As many peers are admitted at once as there
are slots: an early BUSY lets the requester find somebody with a free slot, where a queue would
hold it, and who was told BUSY is told when there is room again. Who is being served may have its next
request wait here, so that no slot stands empty for as long as a question takes (decision 0024). A peer whose
link is far slower than the others' takes no slot from them: it would hold it for ten of their turns, and that
is seen before the first of them is over.

How many flow at once follows how long they take beside the tempo of the swarm: a node with a slow uplink
that sends a rare run to seven peers in parallel keeps everybody waiting, while two at a time are soon many
holders. It admits no more than flow: who waited there would wait for long. And there who was served last gives
way once to those that were turned away, or one that is slow itself would keep its slot to the end (decision 0025).

Where all slots are open who is served stays, for a call and a new question cost time; but whoever was turned away
two rounds ago comes next, or what this node alone has would reach those that it serves and nobody else (decision 0026).
"""

import math
from collections import deque
from collections.abc import Hashable
from enum import IntEnum
from itertools import takewhile
from statistics import median_high
from typing import Generic, NamedTuple, TypeVar

from p2pcache.core.settings import UploadSettings
from p2pcache.errors import LocalProtocolError

_FEWEST_SLOTS = 2.0  # one sends while the other starts or ends; also until the uplink is known
_HURRY = 0.75  # of the pace: quicker than this opens another slot
_KNOWN = 8  # uploads below which nobody is called slow
_DURATIONS = 31  # the last uploads
# Median uploads that one takes to a slow peer: real connections that share a full link are two to three times off for a
# while.
_SLOW = 3.0
_OWN = 3  # of one peer: what is being sent, the next, and one whose end it saw before we did
_FEW_ASKERS = 2  # with so many nobody else is kept waiting by a long queue
# ... among so many requests: those that wait at one moment are often few in a storm of many, and long queues
# cost 8 real nodes 0.02 of eta (decision 0018).
_LATELY = 32
# Uploads that end, for each slot, until somebody gives way to who was turned away before them: three or four cure as
# much where many come late, and less where some are slow (decision 0026).
_ROUNDS = 2
_URGENT = 8  # more places for what is urgent: a rack waits for who is turned away at its boundary

Item = TypeVar("Item", bound=Hashable)


class Turn(IntEnum):
    """Whose requests are served first."""

    URGENT = 1  # across a boundary of racks or sites, or who asks is shut out by the others
    USUAL = 2
    WARM = 3  # somebody will want it
    BACKGROUND = 4  # nobody waits for it


class _Refusal(NamedTuple, Generic[Item]):
    item: Item
    at: int  # uploads that had ended


class UploadQueue(Generic[Item]):
    """Admission and order of uploads.

    What is asked for across the boundary of a rack or site comes before everything else, because a whole
    rack waits for it, and so does what somebody asks for who is shut out; both find a place when the others
    don't. What warms a cache waits behind all that, what is asked for in the background behind everything;
    neither takes a place from what comes before it, nor has its next request wait here: the slot is for
    whoever is more in need.

    Invariants (`check`): at most twice `slots` active, and `slots` peers slow; a peer has one active upload at most;
    the rotation holds all and only peers that wait; a peer's requests wait in the order of their turns; who gives way
    is being served.
    """

    def __init__(self, settings: UploadSettings) -> None:
        """Start empty and open."""
        self._settings = settings
        self._active: dict[int, tuple[Turn, Item]] = {}  # peer -> what is being sent to it
        self._waiting: dict[int, deque[tuple[Turn, Item]]] = {}  # peer -> its requests, in order
        self._rotation: deque[int] = deque()  # peers that wait, the next one first
        self._slots = settings.slots
        self._lately: deque[int] = deque(maxlen=_LATELY)  # the peers that asked last
        # Peer -> what it was told BUSY for, all places being taken; the longest ago first.
        self._refused: dict[int, _Refusal[Item]] = {}
        self._ends = 0  # uploads so far
        self._giving_way: set[int] = set()  # served still, its next request was told BUSY
        self._took_s: deque[float] = deque(maxlen=_DURATIONS)
        self._usual_s = math.inf  # the median of them, once it is known
        self._since: dict[int, float] = {}  # peer -> when what is being sent to it was seen first
        # Peers beside whom a slot is kept for the others; as many as slots at most.
        self._slow: set[int] = set()
        self._open = True
        self._served: int | None = None  # whose upload ended last, if it hasn't given way since
        self._paced = _FEWEST_SLOTS  # as many flow at once at most, within `slots`

    @property
    def load(self) -> int:
        """Peers that are served or wait: what is piggybacked to peers."""
        return len(self._active.keys() | self._waiting.keys())

    @property
    def active(self) -> int:
        """Uploads being sent now."""
        return len(self._active)

    def close(self) -> None:
        """Admit nothing more (an orderly end); what was admitted is still served."""
        self._open = False

    def limit(self, slots: int) -> None:
        """Send so many at once at most from now on, within the settings; what is active goes on."""
        self._slots = max(1, min(slots, self._settings.slots))

    def offer(self, peer: int, item: Item, turn: Turn = Turn.USUAL) -> bool:
        """Admit a request, or return False: answer BUSY.

        With several peers at once, none holds more than an even share of the places, so that one
        greedy peer can't turn the others away.

        Args:
            peer: who asks.
            item: for what.
            turn: when it is served.
        """
        self._lately.append(peer)
        mine = len(self._waiting.get(peer, ())) + (peer in self._active)
        few_places = self._few_places if turn < Turn.WARM else 0
        yields = turn is Turn.USUAL and (self._others_turn(peer) or self._gives_way(peer))
        next_waits = mine and turn < Turn.WARM and not yields
        full = not next_waits and self._taken(turn) >= max(self._places(turn), few_places)
        if yields and peer == self._served:
            self._served, full = None, True
        if not self._open or full or mine >= self._share(peer, turn, few_places):
            if full and turn < Turn.WARM:
                self._refused.setdefault(peer, _Refusal(item, self._ends))
            return False
        self._refused.pop(peer, None)
        if peer not in self._waiting:
            self._waiting[peer] = deque()
            self._rotation.append(peer)
        waiting = self._waiting[peer]
        behind = sum(one > turn for one, _ in waiting)
        waiting.insert(len(waiting) - behind, (turn, item))
        return True

    def start(self) -> tuple[int, Item] | None:
        """The next upload to start now (it is active until `ended`), or None. Call until None."""
        if len(self._active) >= 2 * self._settings.slots:
            return None
        if len(self._active.keys() - self._slow) >= self._at_once:
            return None
        turns = sorted({line[0][0] for line in self._waiting.values()})
        return next((one for turn in turns if (one := self._next(turn))), None)

    def look(self, now: float) -> None:
        """See at this time (seconds) who is sent to for far longer than usual; call it after `start`."""
        for peer in self._active:
            self._mark(peer, now - self._since.setdefault(peer, now))

    def vacant(self) -> list[Item]:
        """Refused requests, the oldest first, whose askers should hear that there is room now; each is named once.

        As many as there are free slots: an asker may have found somebody else meanwhile, but
        calling more than one for each sends most of them away again.
        """
        if not self._refused or not self._open:
            return []
        room = max(0, self._at_once - self._taken(Turn.USUAL))
        return [self._refused.pop(peer).item for peer in list(self._refused)[:room]]

    def _next(self, turn: Turn) -> tuple[int, Item] | None:
        for _ in range(len(self._rotation)):
            peer = self._rotation.popleft()
            if peer in self._active or self._waiting[peer][0][0] != turn:
                self._rotation.append(peer)
                continue
            began = self._waiting[peer].popleft()
            if self._waiting[peer]:
                self._rotation.append(peer)
            else:
                del self._waiting[peer]
            self._active[peer] = began
            return peer, began[1]
        return None

    def ended(
        self, peer: int, item: Item, took_s: float | None = None, tempo_s: float = 0.0
    ) -> None:
        """An active upload is over, whatever its outcome.

        Args:
            peer: whom it went to.
            item: what was admitted.
            took_s: seconds since its start, if it was sent to its end.
            tempo_s: seconds from one new run to the next in its swarm; 0: not known.

        Raises:
            LocalProtocolError: it wasn't active.
        """
        if peer not in self._active or self._active[peer][1] != item:
            raise LocalProtocolError("the end of an upload that is not active")
        del self._active[peer]
        self._since.pop(peer, None)
        self._giving_way.discard(peer)
        self._served = peer
        self._ends += 1
        if took_s is None:
            return
        self._judge(peer, took_s)
        settings = self._settings
        pace_s = settings.pace * settings.slots * tempo_s
        if 0 < pace_s < took_s:
            slower = self._paced * max(0.5, pace_s / took_s)
            self._paced = max(_FEWEST_SLOTS, min(self._paced - 1, slower))
        elif not pace_s or took_s < _HURRY * pace_s:
            self._paced = min(settings.slots, self._paced + 1)

    def _judge(self, peer: int, took_s: float) -> None:
        self._took_s.append(took_s)
        if len(self._took_s) >= _KNOWN:
            self._usual_s = median_high(self._took_s)
        self._slow.discard(peer)
        self._mark(peer, took_s)

    def _mark(self, peer: int, took_s: float) -> None:
        if took_s > _SLOW * self._usual_s and len(self._slow) < self._settings.slots:
            self._slow.add(peer)

    def cancel(self, peer: int, item: Item) -> bool:
        """Take a waiting request out; False if it doesn't wait (it is active, or was never here)."""
        waiting = self._waiting.get(peer)
        found = next((one for one in waiting or () if one[1] == item), None)
        if waiting is None or found is None:
            return False
        waiting.remove(found)
        if not waiting:
            del self._waiting[peer]
            self._rotation.remove(peer)
        return True

    def leave(self, peer: int) -> list[Item]:
        """A peer is gone: its waiting requests, now removed. An active one still needs `ended`."""
        self._lately = deque((one for one in self._lately if one != peer), maxlen=_LATELY)
        self._refused.pop(peer, None)
        self._slow.discard(peer)
        waiting = self._waiting.pop(peer, None)
        if waiting is None:
            return []
        self._rotation.remove(peer)
        return [item for _, item in waiting]

    def check(self) -> None:
        """Assert the invariants (tests and simulator)."""
        assert len(self._slow) <= self._settings.slots
        assert len(self._active) <= 2 * self._settings.slots
        assert self._since.keys() <= self._active.keys()
        assert self._giving_way <= self._active.keys()
        most = self._settings.slots + self._settings.queue + _URGENT
        assert self.load <= 4 * max(most, self._settings.few_askers_places)
        assert set(self._rotation) == set(self._waiting)
        assert len(self._rotation) == len(self._waiting)
        assert all(self._waiting.values())
        lines = [[turn for turn, _ in line] for line in self._waiting.values()]
        assert all(line == sorted(line) for line in lines)

    @property
    def _at_once(self) -> int:
        """Uploads that may flow, beside those to slow peers."""
        return min(self._slots, int(self._paced))

    @property
    def _capacity(self) -> int:
        return self._at_once + self._settings.queue

    def _others_turn(self, peer: int) -> bool:
        """Whether few are served at once here and others than this one were turned away."""
        return self._at_once < self._settings.slots and bool(self._refused.keys() - {peer})

    def _gives_way(self, peer: int) -> bool:
        """Whether its slot is for one that was turned away long ago; one slot for each of those."""
        if self._at_once < self._settings.slots or peer not in self._active:
            return False
        if peer not in self._giving_way:
            before = self._ends - _ROUNDS * self._settings.slots
            refused = (one.at for one in self._refused.values())
            if sum(1 for _ in takewhile(lambda at: at <= before, refused)) <= len(self._giving_way):
                return False
            self._giving_way.add(peer)
        return True

    def _places(self, turn: Turn) -> int:
        """Peers below which one more is admitted."""
        places = self._capacity if turn < Turn.WARM else self._at_once
        return places + (_URGENT if turn < Turn.USUAL else 0)

    def _taken(self, turn: Turn) -> int:
        """Peers that are served or wait, but for slow ones and those whose turn comes later than this."""
        served = {peer for peer, (one, _) in self._active.items() if one <= turn}
        served.update(peer for peer, line in self._waiting.items() if line[0][0] <= turn)
        return len(served - self._slow)

    @property
    def _few_places(self) -> int:
        """Places in all while few ask; 0: they aren't few, or we are to give way."""
        if self._slots < self._settings.slots:
            return 0
        askers: set[int] = set()
        for peer in self._lately:
            askers.add(peer)
            if len(askers) > _FEW_ASKERS:
                return 0
        return self._settings.few_askers_places

    def _share(self, peer: int, turn: Turn, few_places: int) -> int:
        askers = len(self._active.keys() | self._waiting.keys() | {peer})
        own = 1 if turn >= Turn.WARM else _OWN
        usual = min(self._settings.per_peer, max(own, self._capacity // askers))
        return max(usual, few_places // askers)
