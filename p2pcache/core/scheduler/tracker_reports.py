"""What a scheduler wants its tracker to know, as messages. Pure: the agent and the simulator share it."""

from p2pcache.core import bitset
from p2pcache.core.protocol import messages as m
from p2pcache.core.swarm import commands


def to_tracker(
    command: commands.Command, digest: str, epoch: int, run_count: int
) -> m.LeaseReport | m.Stuck | m.Blame | None:
    """The message that a command asks for; None if it isn't one for the tracker.

    Args:
        command: of the scheduler.
        digest: hex, of the model's manifest.
        epoch: of the tracker that the leases are of.
        run_count: runs of the model.
    """
    match command:
        case commands.LeaseReport():
            return m.LeaseReport(
                digest, epoch,
                done=tuple(bitset.members(command.done)),
                failed=tuple(bitset.members(command.failed)),
                mismatched=tuple(bitset.members(command.mismatched)),
                returned=tuple(bitset.members(command.returned)),
                demanded=tuple(bitset.members(command.demanded)),
            )  # fmt: skip
        case commands.LeaseCredit(credit, wanted):
            return m.LeaseReport(digest, epoch, credit=credit, wanted=wish(wanted, run_count))
        case commands.Stuck(runs, lacks, vain, gives):
            stuck = tuple(bitset.members(runs))
            return m.Stuck(digest, stuck, bitset.to_bytes(lacks, run_count), vain, gives)
        case commands.Blame(peer, run):
            return m.Blame(peer, digest, run)
        case _:
            return None


def wish(wanted: int, run_count: int) -> bytes:
    """Wanted runs as the tracker is told them: nothing stands for all."""
    wanted &= bitset.full(run_count)
    if wanted == bitset.full(run_count):
        return b""
    return bitset.to_bytes(wanted, run_count)
