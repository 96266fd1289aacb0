"""Frames of peer connections as bytes: pack, parse, limits. docs/protocol.md describes them.

All input is untrusted; input that breaks a rule raises RemoteProtocolError.
"""

import struct
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import msgspec

from p2pcache.core import bitset
from p2pcache.core.format.chunking import MAX_CHUNK_BYTES, KiB
from p2pcache.core.format.manifest import MAX_CHUNKS
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import RemoteProtocolError
from p2pcache.ids import DIGEST_BYTES, RunSet

HEADER = struct.Struct("<BBHIII")  # type, flags, stream, a, b, payload length
HEADER_BYTES = HEADER.size
FLAG = 1  # flag bit 0; its meaning depends on the frame
_URGENT = 2  # flag bit 1 of a REQUEST
_WARM = (
    4  # flag bit 2, beside FLAG: a warm, before other background requests; older releases ignore it
)
_PRIORITY_FLAGS = {
    Priority.URGENT: _URGENT, Priority.USUAL: 0,
    Priority.WARM: FLAG | _WARM, Priority.BACKGROUND: FLAG,
}  # fmt: skip
MAX_STREAM = 0xFFFF
MAX_REASON_BYTES = 200
_HANDSHAKE_BYTES = 1 * KiB
_CONTROL_BYTES = 256 * KiB  # a bitmap of 1 M runs is 125 KB
_COUNT = struct.Struct("<I")


class Kind(IntEnum):
    """Frame types."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    JOIN = 4
    JOINED = 5
    HAVE = 6
    REQUEST = 7
    CANCEL = 8
    DATA = 9
    BUSY = 10
    REFUSED = 11
    LEAVE = 12
    PING = 13
    BYE = 14


# Largest payload of each type. DATA is checked against the manifest instead.
PAYLOAD_LIMIT: dict[int, int] = {
    Kind.CHALLENGE: _HANDSHAKE_BYTES,
    Kind.HELLO: _HANDSHAKE_BYTES,
    Kind.WELCOME: _HANDSHAKE_BYTES,
    Kind.JOIN: _CONTROL_BYTES,
    Kind.JOINED: _CONTROL_BYTES,
    Kind.HAVE: _CONTROL_BYTES,
    Kind.REQUEST: _COUNT.size,
    Kind.CANCEL: 0,
    Kind.DATA: MAX_CHUNK_BYTES,
    Kind.BUSY: 0,
    Kind.REFUSED: MAX_REASON_BYTES,
    Kind.LEAVE: 0,
    Kind.PING: 0,
    Kind.BYE: MAX_REASON_BYTES,
}
# Frames that each side may receive, before and after the handshake.
REQUESTER_GREETS = frozenset({Kind.CHALLENGE, Kind.WELCOME, Kind.BYE})
REQUESTER_HEARS = frozenset({
    Kind.JOINED, Kind.HAVE, Kind.DATA, Kind.BUSY, Kind.REFUSED, Kind.PING, Kind.BYE,
})  # fmt: skip
SERVER_GREETS = frozenset({Kind.HELLO, Kind.BYE})
SERVER_HEARS = frozenset({
    Kind.JOIN, Kind.HAVE, Kind.REQUEST, Kind.CANCEL, Kind.LEAVE, Kind.PING, Kind.BYE,
})  # fmt: skip


class Frame(NamedTuple):
    """One control frame."""

    kind: int
    flags: int
    stream: int
    a: int
    b: int
    payload: bytes


class Join(NamedTuple):
    """The content of a JOIN."""

    digest: str  # hex
    address: str  # "host:port" of the requester's listener, "" if it has none
    run_count: int
    have: RunSet
    wants: bool  # the requester lacks some of the model


def pack(
    kind: Kind, *, flags: int = 0, stream: int = 0, a: int = 0, b: int = 0, payload: bytes = b""
) -> bytes:
    """A control frame as bytes."""
    return HEADER.pack(kind, flags, stream, a, b, len(payload)) + payload


def data_header(stream: int, request: int, chunk: int, length: int) -> bytes:
    """The header that precedes a chunk's bytes."""
    return HEADER.pack(Kind.DATA, 0, stream, request, chunk, length)


def reason(kind: Kind, text: str, *, stream: int = 0, a: int = 0) -> bytes:
    """A BYE or REFUSED with its reason, cut to the protocol's limit."""
    payload = text.encode()[:MAX_REASON_BYTES]
    return pack(kind, stream=stream, a=a, payload=payload)


def reason_text(frame: Frame) -> str:
    """The reason in a BYE or REFUSED, safe to print."""
    return "".join(c if c.isprintable() else "?" for c in frame.payload.decode(errors="replace"))


def check_header(kind: int, length: int, accepted: frozenset[Kind]) -> None:
    """Refuse a frame by its header, before a byte of its payload is read.

    Raises:
        RemoteProtocolError: unknown type, not acceptable now, or too long.
    """
    if kind not in accepted:
        name = Kind(kind).name if kind in PAYLOAD_LIMIT else str(kind)
        raise RemoteProtocolError(f"frame of type {name} is not acceptable now")
    if length > PAYLOAD_LIMIT[kind]:
        raise RemoteProtocolError(f"{Kind(kind).name} frame of {length} bytes is too long")


def join(stream: int, said: Join) -> bytes:
    """A JOIN frame."""
    address = said.address.encode()
    payload = b"".join((
        bytes.fromhex(said.digest), bytes((len(address),)), address,
        bitset.to_bytes(said.have, said.run_count),
    ))  # fmt: skip
    flags = FLAG if said.wants else 0
    return pack(Kind.JOIN, flags=flags, stream=stream, a=said.run_count, payload=payload)


def parse_join(frame: Frame) -> Join:
    """The content of a JOIN.

    Raises:
        RemoteProtocolError: malformed.
    """
    data = frame.payload
    if len(data) <= DIGEST_BYTES or frame.a > MAX_CHUNKS:
        raise RemoteProtocolError("malformed JOIN")
    bitmap_at = DIGEST_BYTES + 1 + data[DIGEST_BYTES]
    try:
        address = data[DIGEST_BYTES + 1 : bitmap_at].decode("ascii")
    except UnicodeDecodeError:
        raise RemoteProtocolError("JOIN with an address that is not ASCII") from None
    have = bitset.from_bytes(data[bitmap_at:], frame.a)
    return Join(data[:DIGEST_BYTES].hex(), address, frame.a, have, bool(frame.flags & FLAG))


def joined(stream: int, run_count: int, load: int, have: RunSet | None) -> bytes:
    """A JOINED frame; `have` None: the model is not served here."""
    if have is None:
        return pack(Kind.JOINED, flags=FLAG, stream=stream, b=load)
    bitmap = bitset.to_bytes(have, run_count)
    return pack(Kind.JOINED, stream=stream, a=run_count, b=load, payload=bitmap)


def parse_joined(frame: Frame, run_count: int) -> RunSet | None:
    """The runs that the server has; None: the model is not served there.

    Raises:
        RemoteProtocolError: malformed, or another number of runs than the manifest has.
    """
    if frame.flags & FLAG:
        return None
    if frame.a != run_count:
        raise RemoteProtocolError(f"JOINED for {frame.a} runs where the manifest has {run_count}")
    return bitset.from_bytes(frame.payload, run_count)


def have(stream: int, runs: RunSet, run_count: int, load: int) -> bytes:
    """A HAVE frame in the shorter of its two forms."""
    count = runs.bit_count()
    if count * _COUNT.size > (run_count + 7) // 8:
        payload = bitset.to_bytes(runs, run_count)
        return pack(Kind.HAVE, flags=FLAG, stream=stream, a=load, b=run_count, payload=payload)
    payload = struct.pack(f"<{count}I", *bitset.members(runs))
    return pack(Kind.HAVE, stream=stream, a=load, b=count, payload=payload)


def parse_have(frame: Frame, run_count: int) -> RunSet:
    """The runs of a HAVE.

    Raises:
        RemoteProtocolError: malformed or a run beyond `run_count`.
    """
    if frame.flags & FLAG:
        return bitset.from_bytes(frame.payload, run_count)
    if len(frame.payload) != frame.b * _COUNT.size:
        raise RemoteProtocolError("HAVE whose count doesn't match its length")
    # Through bytes, not bit by bit on an int: a hostile list of 60,000 runs would cost seconds.
    bitmap = bytearray((run_count + 7) // 8)
    for (run,) in _COUNT.iter_unpack(frame.payload):
        if run >= run_count:
            raise RemoteProtocolError(f"HAVE of run {run} where the manifest has {run_count}")
        bitmap[run >> 3] |= 1 << (run & 7)
    return int.from_bytes(bitmap, "little")


def request(
    stream: int, number: int, first: int, count: int, priority: Priority = Priority.USUAL
) -> bytes:
    """A REQUEST for `count` chunks from `first`."""
    payload = _COUNT.pack(count)
    return pack(
        Kind.REQUEST,
        flags=_PRIORITY_FLAGS[priority],
        stream=stream,
        a=number,
        b=first,
        payload=payload,
    )


def priority_of(frame: Frame) -> Priority:
    """The priority of a REQUEST."""
    if frame.flags & FLAG:
        return Priority.WARM if frame.flags & _WARM else Priority.BACKGROUND
    return Priority.URGENT if frame.flags & _URGENT else Priority.USUAL


def parse_request(frame: Frame, chunk_count: int) -> range:
    """The chunks of a REQUEST.

    Raises:
        RemoteProtocolError: malformed, nothing, or beyond the manifest.
    """
    if len(frame.payload) != _COUNT.size:
        raise RemoteProtocolError("malformed REQUEST")
    (count,) = _COUNT.unpack(frame.payload)
    if not count or frame.b + count > chunk_count:
        raise RemoteProtocolError(f"REQUEST beyond the {chunk_count} chunks of the manifest")
    return range(frame.b, frame.b + count)


Message = TypeVar("Message", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder()


def greeting(kind: Kind, message: msgspec.Struct) -> bytes:
    """A handshake frame."""
    return pack(kind, payload=_encoder.encode(message))


def parse_greeting(frame: Frame, shape: type[Message]) -> Message:
    """The handshake message in a frame.

    Raises:
        RemoteProtocolError: malformed.
    """
    try:
        message: Any = msgspec.msgpack.decode(frame.payload, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed handshake: {error}") from None
    if not isinstance(message, shape):  # for mypy; decode checked it already
        raise RemoteProtocolError("malformed handshake")
    return message
