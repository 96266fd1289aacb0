"""The project's doors to strangers that are pure: parsers and deciders.

Each takes any input, or refuses it in its own words.

A door gives its inputs, and a check that must not raise. Doors of running daemons are in `daemons`.
"""

import contextlib
import io
import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from hypothesis import strategies as st

from p2pcache.cli import init
from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.format import file_filter, manifest, tag_record
from p2pcache.core.format.chunking import safetensors_header_bytes, safetensors_starts
from p2pcache.core.format.layout import Layout
from p2pcache.core.protocol import address, handshake, tokens
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.keep_orders import KeepOrder, KeepOrders, Kept, KeptReport
from p2pcache.core.settings import LeaseSettings, MemberSettings
from p2pcache.errors import (
    InvalidHeader,
    InvalidManifest,
    NotAllowed,
    NotFound,
    P2PCacheError,
    RemoteProtocolError,
    UsageError,
)
from p2pcache.ids import Ref
from p2pcache.io import config
from p2pcache.io.blobs import bitmap
from p2pcache.io.peers.protocol import wire
from p2pcache.loader.format import header, index
from tests.fuzz.inputs import TEXTS, changed, damaged

SLOW_S = 5.0  # for one input: a bound of time by its size, with room for a busy machine
DIGEST = "ab" * 32


class Door(NamedTuple):
    """One door: its inputs, and what is done with each. The check raises if the door fails."""

    name: str
    inputs: st.SearchStrategy[Any]
    open: Callable[[Path], "contextlib.AbstractContextManager[Callable[[Any], None]]"]


def pure(name: str, inputs: st.SearchStrategy[Any], check: Callable[[Any], None]) -> Door:
    """A door without a daemon behind it."""

    def timed(given: Any) -> None:
        began = time.thread_time()
        check(given)
        assert time.thread_time() - began < SLOW_S, "one input took seconds"

    return Door(name, inputs, lambda _: contextlib.nullcontext(timed))


def _manifest() -> bytes:
    one = [manifest.Chunk(3, bytes(range(32))), manifest.Chunk(9, bytes(32))]
    files = {"a.json": one[:1], "dir/b.bin": one, "dir/c": [], "\u00e9/\u00df": one * 3}
    return manifest.encode(
        manifest.make_manifest(manifest.make_file(p, c) for p, c in files.items())
    )


def check_manifest(data: bytes) -> None:
    with contextlib.suppress(InvalidManifest):
        found = manifest.decode(data)
        assert manifest.encode(found) == data
        Layout(found)


def check_tag(data: bytes) -> None:
    with contextlib.suppress(P2PCacheError):
        tag_record.decode_tag(data)


def check_header(data: bytes) -> None:
    size = len(data)
    length = safetensors_header_bytes(data[:8], size)
    if length is not None:
        safetensors_starts(data[8 : 8 + length], size)
    with contextlib.suppress(InvalidHeader):
        length = header.header_bytes(data[:8], size, "m")
        found = header.parse(data[8 : 8 + length], size, "m")
        assert all(one.nbytes >= 0 for one in found.tensors.values())


def check_index(data: bytes) -> None:
    with contextlib.suppress(InvalidHeader):
        found = index.parse_index(data, {"m-1.safetensors": 8}, "m.index.json")
        assert set(found.values()) <= {"m-1.safetensors"}


def check_bitmap(data: bytes) -> None:
    bitmap.decode(data)


def check_text(text: str) -> None:
    with contextlib.suppress(UsageError):
        ref = Ref.parse(text)
        assert Ref.parse(str(ref)) == ref
    with contextlib.suppress(RemoteProtocolError):
        host, port = address.split(text)
        assert host
        assert 0 <= port <= 65535
    with contextlib.suppress(NotAllowed):
        tokens.verify(handshake.Secret(b"k" * 32), text, 1.0)


def check_patterns(given: tuple[list[str], list[str]]) -> None:
    with contextlib.suppress(UsageError, NotFound):
        file_filter.pick_paths(list(_LAYOUT.blob_of_file), *given)


def check_frame(given: tuple[int, int, int, int, int, bytes]) -> None:
    kind, flags, stream, a, b, payload = given
    frame = wire.Frame(kind, flags, stream, a, b, payload)
    for parse in (
        lambda: wire.check_header(kind, len(payload), frozenset(wire.Kind)),
        lambda: wire.parse_join(frame),
        lambda: wire.parse_joined(frame, a % 5000),
        lambda: wire.parse_have(frame, b % 5000),
        lambda: wire.parse_request(frame, a),
        lambda: wire.parse_greeting(frame, handshake.Challenge),
        lambda: wire.parse_greeting(frame, handshake.Hello),
        lambda: wire.parse_greeting(frame, handshake.Welcome),
        lambda: wire.reason_text(frame),
    ):
        with contextlib.suppress(RemoteProtocolError):
            parse()


def check_to_agent(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        m.decode_to_agent(data)


def check_tracker(given: list[tuple[int, bytes]]) -> None:
    """Members send anything after their announcement; one that breaks the protocol is dropped, as the hub does."""
    tracking = TrackerState(epoch=5, members=MemberSettings(), leases=LeaseSettings(in_flight=4))
    now = 1.0
    for node in (1, 2, 3):
        hello = m.Announce(f"10.0.0.{node}:7400", "1", swarms=(_STATE,))
        tracking.handle(node, hello, now)
    for node, data in given:
        now += 0.1
        try:
            tracking.handle(node, m.decode_to_tracker(data), now)
        except RemoteProtocolError:
            tracking.on_disconnected(node, now)
        tracking.tick(now)
    tracking.check()


def check_init(argv: list[str]) -> None:
    asked: list[list[str]] = []

    def run(words: list[str]) -> int:
        asked.append(words)
        return 0

    with (
        mock.patch.object(init, "p2pcache", run),
        mock.patch.object(init, "note"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        code = init.main(argv)
    assert code == (0 if asked or argv in (["-h"], ["--help"]) else 2)
    for words in asked:
        assert words[:1] == ["pull"] or words[:2] == ["compile-cache", "restore"]
        assert not words[len(words[:1]) if words[0] == "pull" else 2].startswith("-"), (
            "a ref is no option"
        )


@contextlib.contextmanager
def _toml(folder: Path) -> Iterator[Callable[[bytes], None]]:
    path = folder / "config.toml"

    def check(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(P2PCacheError):
            config.read_file(path)

    yield check


_LAYOUT = Layout(
    manifest.make_manifest(manifest.make_file(p, []) for p in ("a.json", "b/c.bin", "\u00e9[x"))
)
_STATE = m.SwarmState(DIGEST, 40, b"\1\0\0\0\0", credit=2)
_TO_TRACKER: list[msgspec.Struct] = [
    m.Announce("10.0.0.1:1", "1", swarms=(_STATE,)), m.Heartbeat(1, (_STATE,)), m.Enter(_STATE), m.Exit(DIGEST),
    m.LeaseReport(DIGEST, 5, done=(1,), failed=(2,), mismatched=(3,), returned=(4,), credit=2, demanded=(5,)),
    m.Stuck(DIGEST, (1, 2), b"\1\0\0\0\0", vain=(2,), gives=(3,)), m.Blame(2, DIGEST, 1), m.Leaving(),
    m.Heartbeat(ended=(m.EndedPull(DIGEST, "a:b", 5, 1.5, 9, (1, 2, 3)),)),
    KeptReport((Kept(DIGEST, "quota", "x"),)),
]  # fmt: skip
_TO_AGENT: list[m.ToAgent] = [
    m.Settled(1, "file:///x", 1.0, 30.0), m.Swarm(DIGEST, 1, True, (m.Member(2, "10.0.0.2:1"),)),
    m.Grant(DIGEST, 1, (1, 2)), m.Revoke(DIGEST, (1,)), m.Stop(DIGEST, 1, "x"), m.Poll(DIGEST),
    m.Answer(1, b"x"), m.Refusal(1, 4, "x"), m.ClonedId("x"),
    KeepOrders(0, 1, (KeepOrder("a", "b", "c", DIGEST, ((0, 2),)),)),
]  # fmt: skip
_ENTRY = {
    "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "__metadata__": {"format": "pt"},
}
_HEAD = json.dumps(_ENTRY).encode()
_TENSORS = struct.pack("<Q", len(_HEAD)) + _HEAD + bytes(24)
_WORDS = st.one_of(
    TEXTS,
    st.sampled_from([
        "p2pcache://team/m:v1", "p2pcache://-x", "--compile-cache", "vllm", "-h", "--help", "/d", "--to=/x", "p2pcache:///",
    ]),
)  # fmt: skip
_PATTERN = st.lists(st.text(alphabet="ab*?[]!-/.\u00e9", max_size=40), max_size=4)
_U32 = st.integers(0, (1 << 32) - 1)
_FRAME = st.tuples(
    st.integers(0, 40),
    st.integers(0, 255),
    st.integers(0, 65535),
    _U32,
    _U32,
    st.binary(max_size=200),
)
_TAG = tag_record.encode_tag(tag_record.TagRecord(DIGEST, 3, ""))
_INDEX = b'{"metadata":{},"weight_map":{"w":"m-1.safetensors","b":"m-1.safetensors"}}'
_TOML = b'[agent]\nlisten = "127.0.0.1:1"\nupload_slots = 3\n\n[client]\nagent = "unix:///x"\n'
_ENCODED = [m.encode(message) for message in _TO_AGENT]

PURE: list[Door] = [
    pure("manifest", damaged([_manifest()]), check_manifest),
    pure("tag", damaged([_TAG]), check_tag),
    pure("safetensors header", damaged([_TENSORS]), check_header),
    pure("index", damaged([_INDEX]), check_index),
    pure("bitmap", damaged([bitmap.encode(bytearray([1, 0, 1]), 7)]), check_bitmap),
    pure("refs, addresses and tokens", TEXTS, check_text),
    pure("patterns", st.tuples(_PATTERN, _PATTERN), check_patterns),
    pure("peer frames", _FRAME, check_frame),
    pure("messages to an agent", st.one_of(changed(_TO_AGENT), damaged(_ENCODED)), check_to_agent),
    pure(
        "messages to the tracker",
        st.lists(st.tuples(st.integers(1, 3), changed(_TO_TRACKER)), max_size=12),
        check_tracker,
    ),
    pure("arguments of p2pcache-init", st.lists(_WORDS, max_size=5), check_init),
    Door("configuration file", damaged([_TOML]), _toml),
]
