"""The frame codec: round trips, and untrusted bytes that end in RemoteProtocolError or a value."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.protocol.handshake import Challenge, Hello, Welcome
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import RemoteProtocolError
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.wire import Frame, Kind

U32 = st.integers(0, 0xFFFFFFFF)
FRAMES = st.builds(
    Frame, st.sampled_from(list(Kind)), st.integers(0, 255), st.integers(0, 0xFFFF), U32, U32,
    st.binary(max_size=300),
)  # fmt: skip


def unpack(data: bytes) -> Frame:
    kind, flags, stream, a, b, length = wire.HEADER.unpack(data[: wire.HEADER_BYTES])
    payload = data[wire.HEADER_BYTES :]
    assert len(payload) == length
    wire.check_header(kind, length, frozenset(Kind))
    return Frame(kind, flags, stream, a, b, payload)


def test_the_header_is_as_documented() -> None:
    assert wire.data_header(2, 3, 4, 5) == bytes([9, 0, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0])


@given(count=st.integers(1, 3000), data=st.data())
def test_have_round_trip_takes_the_shorter_form(count: int, data: st.DataObject) -> None:
    runs = data.draw(st.integers(1, (1 << count) - 1))
    packed = wire.have(1, runs, count, 7)
    assert wire.parse_have(unpack(packed), count) == runs
    assert len(packed) - wire.HEADER_BYTES <= (count + 7) // 8


@given(count=st.integers(0, 500), address=st.text(st.characters(codec="ascii"), max_size=80),
       wants=st.booleans(), data=st.data())  # fmt: skip
def test_join_round_trip(count: int, address: str, wants: bool, data: st.DataObject) -> None:
    have = data.draw(st.integers(0, (1 << count) - 1))
    said = wire.Join("ab" * 32, address, count, have, wants)
    assert wire.parse_join(unpack(wire.join(5, said))) == said
    assert wire.parse_joined(unpack(wire.joined(5, count, 1, have)), count) == have
    assert wire.parse_joined(unpack(wire.joined(5, count, 1, None)), count) is None


@given(first=st.integers(0, 99), count=st.integers(1, 100), priority=st.sampled_from(Priority))
def test_request_round_trip(first: int, count: int, priority: Priority) -> None:
    frame = unpack(wire.request(1, 2, first, count, priority))
    assert wire.priority_of(frame) is priority
    assert wire.parse_request(frame, first + count) == range(first, first + count)
    with pytest.raises(RemoteProtocolError):
        wire.parse_request(frame, first + count - 1)


def test_a_request_to_a_parent_of_the_release_before_is_urgent() -> None:
    """Its bytes, with flag bits 1 and 3: bit 1 alone has a meaning now."""
    frame = unpack(bytes.fromhex("070a010009000000000000000400000004000000"))
    assert wire.priority_of(frame) is Priority.URGENT
    assert wire.parse_request(frame, 4) == range(4)


def test_an_older_release_serves_a_warm_in_the_background() -> None:
    for priority in Priority:
        known_before = unpack(wire.request(1, 2, 0, 1, priority)).flags & 3
        assert (known_before == wire.FLAG) == (priority >= Priority.WARM)


@given(frame=FRAMES, count=st.integers(0, 1000))
def test_any_frame_is_parsed_or_refused(frame: Frame, count: int) -> None:
    for parse in (
        lambda: wire.parse_have(frame, count),
        lambda: wire.parse_join(frame),
        lambda: wire.parse_joined(frame, count),
        lambda: wire.parse_request(frame, count),
        lambda: wire.parse_greeting(frame, Challenge),
        lambda: wire.parse_greeting(frame, Hello),
        lambda: wire.parse_greeting(frame, Welcome),
        lambda: wire.reason_text(frame),
    ):
        with contextlib.suppress(RemoteProtocolError):
            parse()


@given(kind=st.integers(0, 255), length=U32)
def test_a_header_is_refused_before_its_payload(kind: int, length: int) -> None:
    accepted = wire.SERVER_HEARS
    allowed = kind in accepted and length <= wire.PAYLOAD_LIMIT[kind]
    if allowed:
        wire.check_header(kind, length, accepted)
    else:
        with pytest.raises(RemoteProtocolError):
            wire.check_header(kind, length, accepted)


def test_reasons_are_cut_and_printable() -> None:
    frame = unpack(wire.reason(Kind.BYE, "\x1b[31m" + "é" * 300))
    assert len(frame.payload) == wire.MAX_REASON_BYTES
    assert "\x1b" not in wire.reason_text(frame)
