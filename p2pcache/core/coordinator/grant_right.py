"""Whether a tracker may grant leases now, and how soon agents should do without its grants."""

from collections.abc import Callable
from math import inf

from p2pcache.core.coordinator.settings import DOUBT_MEMBERS, DOUBT_S, HOLD_S


class GrantRight:
    """One tracker's right to grant: its tenure's word, and the time since it stood still.

    What waits in the sockets of a process that stood still was said before, or by agents that didn't hear of each
    other. Grants by it would read again what they read by themselves. So it listens first.
    """

    def __init__(self) -> None:
        """The only tracker, which may grant."""
        self.tenure: Callable[[], bool] | None = None  # our tenure's word; None: there is none
        self.listens_until = -inf  # seconds; it grants nothing before

    def may_grant(self, now: float) -> bool:
        """Whether leases may be granted now. It asks the tenure's clock."""
        return now >= self.listens_until and (self.tenure is None or self.tenure())

    def on_stood_still(self, now: float) -> None:
        """The process did nothing for a while."""
        self.listens_until = now + HOLD_S

    @property
    def fenced(self) -> bool:
        """Whether it ends with a tenure."""
        return self.tenure is not None

    def doubt_s(self, members: int) -> float:
        """Seconds of silence after which agents go on without this tracker; 0: when they have lost it.

        Args:
            members: of the cluster.
        """
        return DOUBT_S * max(1.0, members / DOUBT_MEMBERS) if self.fenced else 0.0
