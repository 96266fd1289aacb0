"""What must be true of pins, holds and intents, whoever was killed: what was acknowledged holds, the rest may."""

import threading
from collections.abc import Hashable, Mapping

NOTHING = ""


class Ledger:
    """The states in which each thing may be. Thread-safe.

    A change that was acknowledged leaves one state, one that was cut short two. While somebody changes a thing nobody
    else does.
    """

    def __init__(self) -> None:
        """Everything is in the state `NOTHING`."""
        self._lock = threading.Lock()
        self._may: dict[Hashable, frozenset[str]] = {}
        self._changing: set[Hashable] = set()

    def begin(self, thing: Hashable) -> bool:
        """Whether nobody else changes the thing; then the caller does, until `end`."""
        with self._lock:
            if thing in self._changing:
                return False
            self._changing.add(thing)
            return True

    def end(self, thing: Hashable, wanted: str, *, outcome: bool | None) -> None:
        """A change to `wanted` has ended: True: it was acknowledged; False: refused; None: nobody knows."""
        with self._lock:
            self._changing.discard(thing)
            before = self._may.get(thing, frozenset({NOTHING}))
            if outcome is not False:
                self._may[thing] = frozenset({wanted}) | (frozenset() if outcome else before)

    def may_be(self, thing: Hashable) -> frozenset[str]:
        """The states in which a thing may be."""
        with self._lock:
            return self._may.get(thing, frozenset({NOTHING}))

    def settle(self, found: Mapping[Hashable, str]) -> list[str]:
        """Compare with what was found, which is known from now on; the things that are in no state they may be in.

        Args:
            found: every thing that isn't in the state `NOTHING`.
        """
        wrong = []
        with self._lock:
            for thing in self._may.keys() | found.keys():
                state = found.get(thing, NOTHING)
                may = self._may.get(thing, frozenset({NOTHING}))
                if state not in may:
                    wrong.append(
                        f"{thing} is {state or 'gone'!r}, not {' or '.join(sorted(may)) or 'absent'!r}"
                    )
                self._may[thing] = frozenset({state})
        return sorted(wrong)
