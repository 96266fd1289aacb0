"""What a scheduler counts of its own doings."""

from dataclasses import dataclass

from p2pcache.core.swarm.events import Outcome, Source

WORDS = {outcome: outcome.name.lower() for outcome in Outcome}  # made once: a log repeats them


@dataclass(slots=True)
class Counters:
    """What a swarm did on this node since the scheduler was made."""

    bytes_peers: int = 0  # of runs that were missing until they were proved; so are the next two
    bytes_origin: int = 0
    bytes_local: int = 0
    bytes_twice: int = 0  # of runs that were proved though they were here already
    requests: int = 0
    duplicates: int = 0
    fetches: int = 0
    busy: int = 0
    refused: int = 0
    stalled: int = 0
    mismatched: int = 0

    def on_bytes_proved(self, source: Source, fresh: int, again: int) -> None:
        """So many bytes of a source were proved that were missing, and so many that were here already."""
        if source is Source.LOCAL:
            self.bytes_local += fresh
            return
        if source is Source.PEER:
            self.bytes_peers += fresh
        else:
            self.bytes_origin += fresh
        self.bytes_twice += again
