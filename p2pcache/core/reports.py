"""What a scheduler wants its tracker to know, as messages. Pure: the agent and the simulator share it."""

from p2pcache.core import chunkset, commands
from p2pcache.core import messages as m


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
                done=tuple(chunkset.members(command.done)),
                failed=tuple(chunkset.members(command.failed)),
                mismatched=tuple(chunkset.members(command.mismatched)),
                returned=tuple(chunkset.members(command.returned)),
                demanded=tuple(chunkset.members(command.demanded)),
            )  # fmt: skip
        case commands.LeaseCredit(credit, wanted):
            return m.LeaseReport(digest, epoch, credit=credit, wanted=wish(wanted, run_count))
        case commands.Stuck(runs, lacks):
            return m.Stuck(
                digest, tuple(chunkset.members(runs)), chunkset.to_bytes(lacks, run_count)
            )
        case commands.Blame(peer, run):
            return m.Blame(peer, digest, run)
        case _:
            return None


def wish(wanted: int, run_count: int) -> bytes:
    """Wanted runs as the tracker is told them: nothing stands for all."""
    wanted &= chunkset.full(run_count)
    if wanted == chunkset.full(run_count):
        return b""
    return chunkset.to_bytes(wanted, run_count)
