"""What members tell of pulls that ended, checked. It is for people to see: nothing is decided by it."""

from collections.abc import Mapping

from p2pcache.core.coordinator.settings import MAX_SECONDS
from p2pcache.core.coordinator.swarm_state import SwarmTracker, check_figures
from p2pcache.core.membership.outputs import PullEnded
from p2pcache.core.membership.usage_ledger import PullEnd
from p2pcache.core.protocol import messages as m
from p2pcache.errors import Cancelled, RemoteProtocolError
from p2pcache.ids import NodeId, is_digest


def ended_pulls(
    node: NodeId, told: tuple[m.EndedPull, ...], swarms: Mapping[str, SwarmTracker]
) -> list[PullEnded]:
    """What people should know of these pulls.

    Args:
        node: the member that tells.
        told: what it says; of a long list the rest isn't heard.
        swarms: by digest.

    Raises:
        RemoteProtocolError: no honest member says this.
    """
    return [_ended(node, said, swarms.get(said.digest)) for said in told[: m.MAX_ENDED]]


def _ended(node: NodeId, said: m.EndedPull, swarm: SwarmTracker | None) -> PullEnded:
    check_figures(said)
    if (said.digest and not is_digest(said.digest)) or len(said.taken) != 3:
        raise RemoteProtocolError("an ended pull of a bad digest, or without figures")
    if not 0 <= said.code <= 255 or not 0 <= said.seconds <= MAX_SECONDS:
        raise RemoteProtocolError("an ended pull with a number out of range")
    record = swarm.roster.members.get(node) if swarm is not None else None
    share = swarm.share_of(record) if swarm is not None and record is not None else 0.0
    end = PullEnd.FAILED if said.code else PullEnd.COMPLETE
    end = PullEnd.CANCELLED if said.code == Cancelled.exit_code else end
    taken = said.taken[0], said.taken[1], said.taken[2]
    return PullEnded(
        node, said.digest, said.label, end, said.code, share, said.seconds, said.total_bytes, taken
    )
