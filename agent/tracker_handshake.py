"""The agent's side of the handshake with the tracker (docs/protocol.md)."""

import os

import aiohttp
import msgspec

from p2pcache.agent import link_trouble
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.handshake import NONCE_BYTES, Challenge, Secret, Welcome, confirm, hello
from p2pcache.errors import NotAllowed, RemoteProtocolError
from p2pcache.ids import NodeId

MAX_HANDSHAKE_BYTES = 1024


async def handshake(
    socket: aiohttp.ClientWebSocketResponse, secret: Secret, node: NodeId, url: str
) -> None:
    """Prove to the tracker that we hold the cluster key, and have it prove the same.

    Args:
        socket: the connection.
        secret: the cluster key.
        node: our id.
        url: of the tracker, for messages.

    Raises:
        NotAllowed: one side doesn't hold the key.
        RemoteProtocolError: it doesn't speak the member protocol.
    """
    try:
        challenge = msgspec.msgpack.decode(
            await receive(socket, MAX_HANDSHAKE_BYTES), type=Challenge
        )
        said = hello(secret, challenge, nonce=os.urandom(NONCE_BYTES), node=node, role="agent")
        await socket.send_bytes(msgspec.msgpack.encode(said))
        welcome = msgspec.msgpack.decode(await receive(socket, MAX_HANDSHAKE_BYTES), type=Welcome)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"{url} doesn't speak the member protocol: {error}") from None
    confirm(secret, challenge, said, welcome)


async def receive(socket: aiohttp.ClientWebSocketResponse, limit_bytes: int) -> bytes:
    """The next binary message during the handshake.

    Raises:
        NotAllowed: the tracker refuses this node.
        Twin: the tracker has another live member with our node id.
        RemoteProtocolError: it is too large, of another kind, or the end.
    """
    frame = await socket.receive()
    if frame.type is not aiohttp.WSMsgType.BINARY:
        reason = f": {frame.extra}" if frame.type is aiohttp.WSMsgType.CLOSE and frame.extra else ""
        if frame.type is aiohttp.WSMsgType.CLOSE and frame.data == m.NOT_ALLOWED:
            raise NotAllowed(f"it refuses this node{reason}")
        if frame.type is aiohttp.WSMsgType.CLOSE and frame.data == m.CLONED_ID:
            raise link_trouble.Twin(frame.extra or "")
        raise RemoteProtocolError(f"the tracker closed the connection during the handshake{reason}")
    data: bytes = frame.data
    if len(data) > limit_bytes:
        raise RemoteProtocolError("the tracker sent an oversized handshake frame")
    return data
