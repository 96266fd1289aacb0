"""What a newer release may have written or said: understood where it only adds, else refused with what to do."""

import msgspec
import pytest

from p2pcache.core.format import manifest, tag_record
from p2pcache.core.protocol import messages, tokens
from p2pcache.core.protocol.handshake import NONCE_BYTES, Challenge, Secret, choose_version, hello
from p2pcache.errors import IntegrityError, InvalidManifest, NotAllowed, RemoteProtocolError

KEY = tokens.signing_key(Secret(b"k" * 32))
DIGEST = "ab" * 32


def test_a_newer_manifest() -> None:
    newer = msgspec.json.encode({"format": "p2pcache.manifest.v2", "tree": []})
    with pytest.raises(InvalidManifest, match=r"newer .* upgrade p2pcache"):
        manifest.decode(newer)


def test_a_newer_tag() -> None:
    record = {"digest": DIGEST, "generation": 7, "previous": "", "signed_by": "x"}
    with pytest.raises(IntegrityError, match=r"newer release .*signed_by.*; upgrade p2pcache"):
        tag_record.decode_tag(msgspec.json.encode(record))


@pytest.mark.parametrize("bad", [b"", b"{}", b"[]", b'{"digest": 1, "generation": 2}', b"\xff"])
def test_a_record_that_no_release_wrote_is_no_newer_tag(bad: bytes) -> None:
    with pytest.raises(IntegrityError, match="not a tag record"):
        tag_record.decode_tag(bad)


def test_a_newer_token() -> None:
    life = {"token_id": "1", "name": "ci", "scope": tokens.Scope.PULL, "namespaces": ("team",)}
    text = tokens.sign(KEY, tokens.make(now=1e9, life_s=60, **life))  # type: ignore[arg-type]
    with pytest.raises(NotAllowed, match="upgrade the agent"):
        tokens.verify(KEY, text.replace(tokens.VERSION, "p2pc2", 1), 1e9)


def test_newer_wire_versions() -> None:
    assert choose_version((3, 2, 1)) == 1  # a newer release speaks the one before too
    far = Challenge(b"n" * NONCE_BYTES, (9, 8))
    with pytest.raises(RemoteProtocolError, match="upgrade the older one"):
        hello(Secret(b""), far, nonce=b"c" * NONCE_BYTES, node=1, role="agent")


def test_a_grant_of_the_release_before_names_no_leases_in_flight() -> None:
    whole = messages.Grant(DIGEST, 1, (2,), in_flight=7)
    *shorter, last = msgspec.msgpack.decode(messages.encode(whole))
    assert last == 7
    assert messages.decode_to_agent(msgspec.msgpack.encode(shorter)) == messages.Grant(
        DIGEST, 1, (2,)
    )


def test_fields_that_a_newer_release_appends_are_passed_over() -> None:
    """So a wire version needn't change with every addition."""
    for message in (
        messages.Announce("h:1", "0.1", swarms=(messages.SwarmState(DIGEST, 3),)),
        messages.Heartbeat(load=2),
        messages.LeaseReport(DIGEST, 1, done=(1,)),
    ):
        longer = msgspec.msgpack.decode(messages.encode(message))
        longer.append({"more": [1, 2]})
        assert messages.decode_to_tracker(msgspec.msgpack.encode(longer)) == message
    settled = messages.Settled(1, "s3://m", 5.0, 15.0)
    longer = [*msgspec.msgpack.decode(messages.encode(settled)), "more"]
    assert messages.decode_to_agent(msgspec.msgpack.encode(longer)) == settled


def test_fields_of_the_release_before_on_trees_are_passed_over() -> None:
    """Its bytes: a tracker names suppliers and roots, an agent names whom it supplies and finds slow."""
    digest = b"\xd9\x40" + DIGEST.encode()
    told = (
        b"\x99\x21" + digest + b"\x07\xc2\x91\x94\x05\xa3h:1\xa1r\xa1s\x90\x91\x05"
        b"\x94\x05\x00\x05\x00\x94\x05\x06\x00\x00"
    )
    assert messages.decode_to_agent(told) == messages.Swarm(
        DIGEST, 7, full=False, joined=(messages.Member(5, "h:1", "r", "s"),), neighbours=(5,)
    )
    said = (
        b"\x95\x02\x02\x91\x9d"
        + digest
        + b"\x03\xc4\x01\x05\xc2\x02\x91\x01\x90\xa0\x00\x90\xc4\x00\xc2"
        b"\x92\x05\x06\x00\x00"
    )
    assert messages.decode_to_tracker(said) == messages.Heartbeat(
        load=2, swarms=(messages.SwarmState(DIGEST, 3, b"\x05", credit=2, leases=(1,)),)
    )


def test_fields_that_an_older_release_leaves_out_have_defaults() -> None:
    """The wire of release 0.1, by hand: what is new must be optional."""
    announce = [1, "h:1", "0.1", "", "", [[DIGEST, 3]]]
    said = messages.decode_to_tracker(msgspec.msgpack.encode(announce))
    assert said == messages.Announce("h:1", "0.1", swarms=(messages.SwarmState(DIGEST, 3),))
    for old, new in (
        ([2], messages.Heartbeat()),
        ([3, [DIGEST, 3, b"\x07", False, 1, [0]]],
         messages.Enter(messages.SwarmState(DIGEST, 3, b"\x07", credit=1, leases=(0,)))),
        ([5, DIGEST, 9, [1], [2]], messages.LeaseReport(DIGEST, 9, done=(1,), failed=(2,))),
    ):  # fmt: skip
        assert messages.decode_to_tracker(msgspec.msgpack.encode(old)) == new


def test_a_message_of_an_unknown_kind_is_refused() -> None:
    for decode in (messages.decode_to_tracker, messages.decode_to_agent):
        with pytest.raises(RemoteProtocolError, match="bad message"):
            decode(msgspec.msgpack.encode([99, DIGEST]))
