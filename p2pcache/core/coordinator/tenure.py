"""Which of several trackers is active: the record of a tenure, and the decider of one contender for it.

The record lies in a store that changes it by comparison (an object at the origin, a Lease of Kubernetes). The contender
that writes itself into it is active for `ttl_s`, and renews it meanwhile. Another contender takes over when it has seen
the same record for a whole `ttl_s` by its own clock, so no clock is compared with another one. The holder counts from
the *beginning* of its write, which nobody sees before, so it stops before anybody takes over. (Gray and Cheriton 1989.)

Each tenure has a greater generation than those before it. It is the tracker's epoch on the wire.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf

from p2pcache.core.coordinator.settings import PAUSE, TENURE_S
from p2pcache.core.format.tenure_record import TenureRecord


@dataclass(frozen=True, slots=True)
class Look:
    """Read the record; ends in `on_seen` or `on_failed`."""


@dataclass(frozen=True, slots=True)
class Write:
    """Replace the record of version `expect`; None: there must be none.

    It ends in `on_seen` with this record and its version, in `on_conflict` or `on_failed`.
    """

    record: TenureRecord
    expect: str | None


class Ending(Enum):
    """Why a tenure ended."""

    NONE = "none"  # there was none
    LATE = "late"  # its record wasn't renewed in time
    OTHER = "other"  # the record is another contender's
    DELETED = "deleted"  # the record is gone
    RESIGNED = "resigned"


class Contender:
    """One tracker that would be active. It has one call to the store under way at most.

    Invariants: `may_act` is true only within `ttl_s` of the beginning of a write of ours that the store took;
    the generations of two tenures differ.
    """

    def __init__(
        self, holder: str, url: str, *, first: int, now: float, ttl_s: float = TENURE_S
    ) -> None:
        """A standby that has seen nothing yet. `holder` tells this process from all others.

        `first`: the least generation of a tenure of ours. Unix seconds do: so a tenure after the record was deleted,
        which nobody remembers, still has a greater one. `now`: of a clock that never stands still.
        """
        self.active = False
        self.generation = 0  # of our tenure, while active
        self.ending = Ending.NONE  # of our last tenure
        self.highest = 0  # generation that was seen: of the latest tenure, whoever has it
        self._holder = holder
        self._url = url
        self._first = first
        self._ttl_s, self._pause_s = ttl_s, PAUSE * ttl_s
        self._until = -inf  # end of our tenure, if it isn't renewed
        self._record: TenureRecord | None = None  # as last seen
        self._version: str | None = None
        self._since = now  # when this record was first seen
        self._seen = False  # the record is as the store has it, as far as we know
        self._renewal = 0
        self._began: dict[int, float] = {}  # our writes that the store may have taken, by renewal
        self._due = now  # the next call; never while one is under way

    def may_act(self, now: float) -> bool:
        """Whether we are active, and surely nobody else is."""
        return self.active and now < self._until

    def active_url(self, now: float) -> str:
        """Where the active tracker is; "": there is none, or it isn't known."""
        record = self._record
        if record is None or now > self._ends_at():
            return ""
        left = record.holder == self._holder and not self.active
        return "" if left else record.url

    def next_wakeup(self) -> float:
        """When `next_call` has something to do next; never while a call is under way."""
        return self._due

    def next_call(self, now: float) -> Look | Write | None:
        """The call that is due; None: none is, or one is under way."""
        if now < self._due:
            return None
        self._end_if_over(now)
        self._due = inf
        if not self._seen or not (self.active or self._is_free(now)):
            return Look()
        generation = self.generation if self.active else max(self.highest + 1, self._first)
        self._renewal += 1
        self._began[self._renewal] = now
        return Write(self._record_of(self._holder, self._url, generation), self._version)

    def on_seen(self, found: tuple[TenureRecord, str] | None, now: float) -> None:
        """The store answered a `Look`, or took our record: this is there now, with its version, or None."""
        record, self._version = found if found is not None else (None, None)
        self._seen = True
        if record != self._record:
            self._record, self._since = record, now
        if record is not None:
            self.highest = max(self.highest, record.generation)
            if record.holder == self._holder and record.renewal in self._began:
                self._on_ours(record, now)
                return
        if self.active:
            self._step_down(Ending.DELETED if record is None else Ending.OTHER)
            self._seen = True
        self._due = now if self._is_free(now) else now + self._pause_s

    def on_conflict(self, now: float) -> None:
        """The record has another version than we expected."""
        self._seen, self._due = False, now

    def on_failed(self, now: float) -> None:
        """A call failed; a write may have been taken, or may be later."""
        self._end_if_over(now)
        self._due = now + self._pause_s

    def resign(self) -> Write | None:
        """Be no contender any more. The write gives the tenure back; None: there is none to give back."""
        self._due = inf
        if not self.active:
            return None
        self._step_down(Ending.RESIGNED)
        self._renewal += 1
        return Write(self._record_of("", "", self.generation), self._version)

    # -- inside ------------------------------------------------------------------------------------

    def _record_of(self, holder: str, url: str, generation: int) -> TenureRecord:
        return TenureRecord(holder, url, generation, self._renewal, self._ttl_s)

    def _on_ours(self, record: TenureRecord, now: float) -> None:
        """The store has a record that we wrote: this one."""
        began = self._began[record.renewal]
        self.active, self.generation = True, record.generation
        self._until = max(self._until, began + self._ttl_s - self._pause_s)
        self._began = {n: at for n, at in self._began.items() if n >= record.renewal}
        self._due = max(now, began + 3 * self._pause_s)

    def _end_if_over(self, now: float) -> None:
        """Step down once another one may take over: agents do better with that one, or with none."""
        if self.active and now >= self._until + self._pause_s:
            self._step_down(Ending.LATE)

    def _step_down(self, ending: Ending) -> None:
        self.ending = ending
        self.active, self._until, self._seen = False, -inf, False
        self._began.clear()

    def _is_free(self, now: float) -> bool:
        """Whether the record's tenure is over or ours, or there is none."""
        ours = self._record is not None and self._record.holder == self._holder
        return ours or now >= self._ends_at()

    def _ends_at(self) -> float:
        """When another one may take over; -inf: nobody has a tenure."""
        if self._record is None or not self._record.holder:
            return -inf
        return self._since + max(self._record.ttl_s, self._ttl_s)
