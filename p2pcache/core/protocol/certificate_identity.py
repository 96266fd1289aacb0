"""Who a certificate says somebody is, and which node ids are theirs. Pure.

In mTLS mode a member's certificate names it in one subject alternative name of type URI:
`p2pcache://ROLE/NAME`. The upper bits of an agent's node id are a hash of that name, so anybody
can check, from the certificate alone and without asking anybody, that a node id belongs to the
member that uses it. The lower bits are the cache's own: one certificate may serve several caches
(a machine's agent, and pulls that run one of their own).
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from blake3 import blake3

from p2pcache.errors import NotAllowed

Role = Literal["agent", "tracker"]
ROLES: tuple[Role, ...] = ("agent", "tracker")
PREFIX = "p2pcache://"
# Of the cache. A DaemonSet may share one certificate: 1,000 caches meet by chance in 1 of 4,000
# clusters. The other 32 are enough against names that a CA's owner chooses, not against names
# that strangers may choose (docs/trust.md).
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
        """As it stands in the certificate."""
        return f"{PREFIX}{self.role}/{self.name}"

    def node(self, own: int) -> int:
        """The node id of this member's cache whose own id is `own`."""
        return _name_bits(self.name) << OWN_BITS | own & ((1 << OWN_BITS) - 1)

    def owns(self, node: int) -> bool:
        """Whether a node id is one of this member's."""
        return self.role == "agent" and node >> OWN_BITS == _name_bits(self.name)


def bearer_of(node: int) -> int:
    """Whose node id this is, where certificates name their bearers: all of one certificate have this in common."""
    return node >> OWN_BITS


def is_name(text: str) -> bool:
    """Whether a member can be called that."""
    return _NAME.fullmatch(text) is not None


def of_uris(uris: Iterable[str]) -> Member:
    """The member that a certificate's URIs name.

    Raises:
        NotAllowed: none of them, or more than one, is ours; or it is malformed.
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
