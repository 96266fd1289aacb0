"""Which member a certificate names, and which node ids belong to it.

In mTLS mode a member's certificate names it in one subject alternative name of type URI:
`p2pcache://ROLE/NAME` (as SPIFFE ids do). The upper bits of an agent's node id are a hash of that name, so a
certificate alone proves that a node id belongs to its bearer. The lower bits are the cache's own: one certificate may
serve several caches (a machine's agent, and pulls that run an agent of their own).
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from blake3 import blake3

from p2pcache.errors import NotAllowed
from p2pcache.ids import NodeId

Role = Literal["agent", "pusher", "tracker"]
"""A pusher is an agent that may also have the tracker move tags."""
ROLES: tuple[Role, ...] = ("agent", "pusher", "tracker")
PREFIX = "p2pcache://"
# Bits of a node id that are the cache's own. A DaemonSet may share one certificate, and a thousand caches hardly ever
# collide in them. The other 32 bits are enough for names that the CA's owner chooses, but not for names that
# strangers may choose (docs/trust.md).
OWN_BITS = 31
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class Member(NamedTuple):
    """The bearer of a certificate of the cluster's CA."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role} {self.name!r}"

    @property
    def uri(self) -> str:
        """The name in the certificate."""
        return f"{PREFIX}{self.role}/{self.name}"

    def node(self, own: NodeId) -> NodeId:
        """The node id of a cache of this member.

        Args:
            own: the cache's own id, of which the lower bits are used.
        """
        return _name_bits(self.name) << OWN_BITS | own & ((1 << OWN_BITS) - 1)

    def owns(self, node: NodeId) -> bool:
        """Whether a node id belongs to this member."""
        return self.acts_as("agent") and node >> OWN_BITS == _name_bits(self.name)

    def acts_as(self, role: Role) -> bool:
        """Whether this member may be what a role says."""
        return self.role == role or (self.role, role) == ("pusher", "agent")

    def need_pusher(self) -> None:
        """Check that this member may have the tracker move tags.

        Raises:
            NotAllowed: it may not.
        """
        if self.role != "pusher":
            raise NotAllowed(
                f"the certificate of {self} doesn't let it move tags, and this storage has no conditional writes; "
                "push through an agent with a certificate of the role pusher (p2pcache ca issue DIR NAME --role pusher)"
            )


def bearer_of(node: NodeId) -> int:
    """The part that all node ids of one certificate have in common."""
    return node >> OWN_BITS


def is_name(text: str) -> bool:
    """Whether a text can be a member's name."""
    return _NAME.fullmatch(text) is not None


def of_uris(uris: Iterable[str]) -> Member:
    """The member that a certificate's URIs name.

    Raises:
        NotAllowed: not exactly one of them names a member, or it is malformed.
    """
    ours = [uri for uri in uris if uri.startswith(PREFIX)]
    if len(ours) != 1:
        raise NotAllowed(
            f"a certificate with {len(ours)} names {PREFIX}ROLE/NAME is no member's; "
            "issue one with 'p2pcache ca issue'"
        )
    said, _, name = ours[0].removeprefix(PREFIX).partition("/")
    role = next((role for role in ROLES if role == said), None)
    if role is None or not is_name(name):
        raise NotAllowed(f"the certificate's name {ours[0][:120]!r} is malformed")
    return Member(role, name)


def _name_bits(name: str) -> int:
    return int.from_bytes(blake3(f"p2pcache.node.v1 {name}".encode()).digest()[:4], "big")
