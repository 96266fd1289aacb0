"""The member handshake, the same on peer connections and on the tracker's WebSocket: challenge and response.

    server -> client  CHALLENGE(nonce_s, versions)
    client -> server  HELLO(nonce_c, node, role, version, proof_c)
    server -> client  WELCOME(node, proof_s)

Each proof is HMAC-SHA256 with the cluster key over everything both sides said, the version list
included: nothing can be replayed (both nonces are fresh) and nothing downgraded (the list is
under the proof). Without a cluster key (loopback or --insecure) the key is empty, and the same
messages prove nothing (docs/trust.md).
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pcache.errors import NotAllowed, RemoteProtocolError
from p2pcache.ids import NodeId

VERSIONS: tuple[int, ...] = (
    1,
)  # wire versions that this release speaks: its own and the one before
NONCE_BYTES = 32
_MAX_NODE = (1 << 63) - 1  # eight signed bytes in the proofs

Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class Challenge(msgspec.Struct, array_like=True, frozen=True):
    """The server speaks first, so that a client's proof is never replayable."""

    nonce: Nonce
    versions: tuple[int, ...]


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The client's half."""

    nonce: Nonce
    node: Annotated[NodeId, Meta(gt=0, le=_MAX_NODE)]  # 0 stands for nobody
    role: str  # "peer", or "agent" towards a tracker
    version: int
    proof: bytes


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """The server's half."""

    node: Annotated[NodeId, Meta(ge=0, le=_MAX_NODE)]
    proof: bytes


@dataclass(slots=True, repr=False)
class Secret:
    """The cluster key, kept out of every repr, and others that are taken as well while the key is changed.

    All parts of a process share one object, so that another key holds everywhere at once.
    """

    key: bytes  # of our own proofs; empty: they prove nothing
    others: tuple[bytes, ...] = ()

    @property
    def taken(self) -> tuple[bytes, ...]:
        """All keys with which a member may prove itself."""
        return (self.key, *self.others)

    def __repr__(self) -> str:
        return "Secret(...)"


def choose_version(offered: Sequence[int]) -> int:
    """The newest version that both sides speak.

    Raises:
        RemoteProtocolError: none in common.
    """
    common = set(offered) & set(VERSIONS)
    if not common:
        raise RemoteProtocolError(
            f"the other side speaks wire versions {list(offered)[:8]}, this release {list(VERSIONS)}; "
            "upgrade the older one"
        )
    return max(common)


def hello(secret: Secret, challenge: Challenge, *, nonce: bytes, node: NodeId, role: str) -> Hello:
    """The client's answer to a challenge.

    Args:
        secret: the cluster key.
        challenge: of the server.
        nonce: fresh random bytes.
        node: this node.
        role: "peer" or "agent".

    Raises:
        RemoteProtocolError: no version in common.
    """
    said = Hello(nonce, node, role, choose_version(challenge.versions), b"")
    return msgspec.structs.replace(said, proof=_client_proof(secret.key, challenge, said))


def accept(
    secret: Secret, challenge: Challenge, said: Hello, *, node: NodeId, role: str
) -> Welcome:
    """Check a HELLO, and answer with a WELCOME.

    Args:
        secret: the cluster key.
        challenge: that this server sent.
        said: the client's HELLO.
        node: this server's node.
        role: that the client must have.

    Raises:
        NotAllowed: wrong key.
        RemoteProtocolError: wrong role or version.
    """
    if said.version not in challenge.versions or said.role != role:
        raise RemoteProtocolError("HELLO with another role or version than the challenge allows")
    for key in secret.taken:
        if hmac.compare_digest(_client_proof(key, challenge, said), said.proof):
            # With the client's key: it may not have ours yet.
            return Welcome(node, _server_proof(key, challenge, said, node))
    raise NotAllowed(
        "a member's proof is wrong: it has no or another cluster key; give all the same --cluster-key-file"
    )


def confirm(secret: Secret, challenge: Challenge, said: Hello, welcome: Welcome) -> None:
    """Check a WELCOME.

    Args:
        secret: the cluster key.
        challenge: of the server.
        said: the HELLO that this client sent.
        welcome: the server's answer.

    Raises:
        NotAllowed: the server doesn't hold the key.
    """
    if not any(
        hmac.compare_digest(_server_proof(key, challenge, said, welcome.node), welcome.proof)
        for key in secret.taken
    ):
        raise NotAllowed(
            "the server's proof is wrong: it has no or another cluster key; give all the same --cluster-key-file"
        )


def _client_proof(key: bytes, challenge: Challenge, said: Hello) -> bytes:
    return _proof(key, b"client", challenge, said)


def _server_proof(key: bytes, challenge: Challenge, said: Hello, node: NodeId) -> bytes:
    return _proof(key, b"server" + node.to_bytes(8, "big", signed=True), challenge, said)


def _proof(key: bytes, side: bytes, challenge: Challenge, said: Hello) -> bytes:
    # msgpack of a list is unambiguous: no field can borrow bytes from its neighbour.
    text = msgspec.msgpack.encode([
        b"p2pcache.handshake.v1", side, challenge.nonce, challenge.versions,
        said.nonce, said.node, said.role, said.version,
    ])  # fmt: skip
    return hmac.digest(key, text, "sha256")
