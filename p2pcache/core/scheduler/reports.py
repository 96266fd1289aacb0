"""What others are told: neighbours by have batches, the tracker by messages. The agent and the simulator share it."""

import math
from collections.abc import Sequence

from p2pcache.core import bitset
from p2pcache.core.peers.settings import BATCH_BYTES, HAVE_WAIT_RUNS, HAVE_WAIT_S
from p2pcache.core.protocol import messages as m
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm import commands
from p2pcache.ids import RunSet


class HaveBatch:
    """Runs that were proved since the last announcement to the neighbours.

    Each batch wakes them up. So a run that several of them have waits for a rarer one, or for a few runs' time.
    """

    def __init__(self, settings: SwarmSettings, run_bytes: Sequence[int]) -> None:
        """It is empty; `run_bytes`: the size of each run of the model."""
        self._interval_s = settings.have_interval_s
        self._full = max(1, BATCH_BYTES // max(run_bytes, default=1))
        self.runs: RunSet = 0
        self._sent_at = -math.inf
        self._due_at = math.inf

    @property
    def due_at(self) -> float:
        """When it is to be announced; inf: it is empty."""
        return self._due_at if self.runs else math.inf

    def add(self, runs: RunSet, common: RunSet, pace_s: float, now: float) -> None:
        """Runs are proved; several neighbours have those in `common`.

        `pace_s` is the time from one run to the next; 0: nothing waits.
        """
        due_at = self._sent_at + self._interval_s
        if not runs & ~common:
            due_at = max(due_at, now + min(HAVE_WAIT_RUNS * pace_s, HAVE_WAIT_S))
        self._due_at = min(self.due_at, due_at)
        self.runs |= runs
        if self.runs.bit_count() >= self._full:
            self._due_at = -math.inf

    def take_batch(self, now: float) -> commands.Announce:
        """The batch, which is announced now."""
        runs, self.runs, self._sent_at, self._due_at = self.runs, 0, now, math.inf
        return commands.Announce(runs)


def to_tracker(
    command: commands.Command, digest: str, epoch: int, run_count: int
) -> m.LeaseReport | m.Stuck | m.Blame | None:
    """The message to the tracker that a command asks for; None if it asks for none.

    `epoch` is that of the tracker that granted the leases, `run_count` that of the model.
    """

    def some(runs: RunSet) -> tuple[int, ...]:
        return tuple(bitset.members(runs))

    match command:
        case commands.LeaseReport():
            return m.LeaseReport(
                digest, epoch, done=some(command.done), failed=some(command.failed),
                mismatched=some(command.mismatched), returned=some(command.returned),
                demanded=some(command.urgent), flow_s=command.flow_s,
            )  # fmt: skip
        case commands.LeaseCredit(credit, wanted):
            return m.LeaseReport(digest, epoch, credit=credit, wanted=wish(wanted, run_count))
        case commands.Stuck(runs, lacking, failing, recovered):
            return m.Stuck(
                digest, some(runs), bitset.to_bytes(lacking, run_count), failing, recovered
            )
        case commands.Blame(peer, run):
            return m.Blame(peer, digest, run)
        case _:
            return None


def wish(wanted: RunSet, run_count: int) -> bytes:
    """Wanted runs of a model with so many as the tracker is told them; empty bytes stand for all."""
    full = bitset.full(run_count)
    return b"" if wanted & full == full else bitset.to_bytes(wanted & full, run_count)
