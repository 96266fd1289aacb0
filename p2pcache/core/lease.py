"""One grant: a node may read one run from the origin."""

from dataclasses import dataclass


@dataclass(slots=True)
class Lease:
    """A grant that runs. Times are the tracker's monotonic seconds."""

    node: int
    since: float
    expires: float
    others: int = 0  # other nodes that came to have the run meanwhile
