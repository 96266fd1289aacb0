"""The agent's side of the handshake with the tracker (docs/protocol.md)."""

import asyncio
import os

import aiohttp
import msgspec

from p2pcache.agent import link_trouble
from p2pcache.agent.tracker_route import Target, TrackerRoute
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.handshake import NONCE_BYTES, Challenge, Secret, Welcome, confirm, hello
from p2pcache.errors import NotAllowed, RemoteProtocolError
from p2pcache.ids import NodeId

MAX_HANDSHAKE_BYTES = 1024
STANDBY_S = (
    8.0  # at a standby, before we look whether another tracker takes us; within the link's limit
)


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


async def settle(
    socket: aiohttp.ClientWebSocketResponse, route: TrackerRoute, target: Target
) -> m.Settled:
    """The tracker's answer to our announcement. At a standby, wait for news of the active tracker.

    Args:
        socket: the connection.
        route: is told of the active tracker.
        target: the tracker that we are connected to.

    Raises:
        Elsewhere: dial the route's next target.
        NoneActive: no tracker became active within `STANDBY_S`.
        NotAllowed, Twin, RemoteProtocolError: as `receive`.
    """
    active, news = "", 0
    try:
        async with asyncio.timeout(STANDBY_S):
            while True:
                said = m.decode_to_agent(await receive(socket, m.MAX_MESSAGE_BYTES))
                if isinstance(said, m.Settled):
                    return said
                if not isinstance(said, m.Standby):
                    raise RemoteProtocolError("the tracker's first message isn't Settled")
                route.standby = target
                active, news = said.active, news + 1
                if route.lead_to(active, again=news > 1):
                    raise link_trouble.Elsewhere(active)
    except RemoteProtocolError:
        if not news or socket.close_code != aiohttp.WSCloseCode.GOING_AWAY:
            raise
        route.on_lost(target, away=False)  # it is the active one in a moment
        raise link_trouble.Elsewhere(target.url) from None
    except TimeoutError:
        if not news:
            raise
        ours, itself = route.knows(active), route.knows(active, target)
        text = link_trouble.standby_text(active, ours=ours, itself=itself)
        raise link_trouble.NoneActive(text) from None


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
