"""What an agent thinks of a tracker that says nothing: it pings it, then doubts it, then gives it up.

TCP keeps the connection to a hanging tracker, or across a broken network, open for a quarter of an hour or for ever.

A tracker that is **doubted** grants nothing, so the node goes by the rules without a tracker. Its connection stays: if
the tracker speaks again, the node announces itself anew on it, and a pause of seconds costs no handshake. A tracker
that is **lost** is left for another one.

A tracker that is **asked** has a reason to speak. One that says nothing then is doubted sooner, because somebody waits.

Looks are counted and not seconds, because a stopped process or a busy loop reads nothing, and that is no silence of the
tracker.
"""

from enum import Enum, auto
from math import inf

# Until a tracker is doubted: storage is idle for about so long. If it speaks again, all announce themselves anew.
DOUBT_S = 1.0
DOUBT_MEMBERS = (
    500  # that ping a tracker in this time. With more all take longer: pings cost processor time
)
LOOKS = 10  # until the first consequence
# Until the doubt, after a question: a lost packet comes again within three (RFC 6298).
LOOKS_ASKED = 5
PING_AT = frozenset({4, 8})  # a ping follows these quiet looks: one of the two answers may be lost


def doubt_s(members: int) -> float:
    """Seconds of silence after which one of several trackers asks to be doubted, with so many members."""
    return DOUBT_S * max(1.0, members / DOUBT_MEMBERS)


class Step(Enum):
    """What follows from one more quiet look."""

    WAIT = auto()
    PING = auto()
    DOUBT = auto()
    LOST = auto()


class Silence:
    """How long one tracker has said nothing.

    Invariant: between two `DOUBT`s there is an `on_settled`.
    """

    def __init__(self, lost_s: float, doubt_s: float = 0.0) -> None:
        """It has just spoken.

        Args:
            lost_s: seconds of silence after which it is lost.
            doubt_s: seconds after which it is doubted, as it asks for; 0: never, as beyond `lost_s`.
        """
        doubts = 0 < doubt_s < lost_s
        self.lost_s = lost_s
        self.doubt_s = doubt_s if doubts else inf
        self.look_s = (doubt_s if doubts else lost_s) / LOOKS  # between two looks
        self.doubted = False
        self._quiet = 0  # looks since it spoke

    def on_sign(self) -> None:
        """A byte of it came."""
        self._quiet = 0

    def on_asked(self) -> bool:
        """A question goes to it. Returns whether a ping should go, too: it answers that at once."""
        if self.doubt_s == inf:
            return False
        self._quiet = max(self._quiet, LOOKS + 1 - LOOKS_ASKED)
        return True

    def on_settled(self) -> None:
        """It has taken in our announcement, so there is no doubt any more."""
        self._quiet, self.doubted = 0, False

    def on_look(self) -> Step:
        """`look_s` have passed."""
        self._quiet += 1
        if self._quiet > self.lost_s / self.look_s:
            return Step.LOST
        if self._quiet > LOOKS and self.doubt_s < inf and not self.doubted:
            self.doubted = True
            return Step.DOUBT
        return Step.PING if self._quiet in PING_AT else Step.WAIT
