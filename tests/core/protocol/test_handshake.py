"""The member handshake against whoever sits in the middle."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.protocol.handshake import (
    NONCE_BYTES,
    VERSIONS,
    Challenge,
    Hello,
    Secret,
    Welcome,
    accept,
    choose_version,
    confirm,
    hello,
)  # fmt: skip
from p2pcache.errors import NotAllowed, RemoteProtocolError

KEY, OTHER = Secret(b"k" * 32), Secret(b"o" * 32)
CHALLENGE = Challenge(b"s" * NONCE_BYTES, VERSIONS)
SERVER, CLIENT = 11, 22
GOLDEN_HELLO = "e72bf7c6b959b6d5b0f56e070cd4d15b9ac9253f6997c21c00f03e9829d41adc"
GOLDEN_WELCOME = "f3591153bf47879cb774281a4d66b27edf7b5c455c4d8bd4c6962431713e9159"


def said(secret: Secret = KEY, challenge: Challenge = CHALLENGE) -> Hello:
    return hello(secret, challenge, nonce=b"c" * NONCE_BYTES, node=CLIENT, role="peer")


def test_two_members_trust_each_other() -> None:
    mine = said()
    welcome = accept(KEY, CHALLENGE, mine, node=SERVER, role="peer")
    confirm(KEY, CHALLENGE, mine, welcome)
    assert welcome.node == SERVER
    assert mine.proof != welcome.proof


def test_the_proofs_are_what_they_were() -> None:
    """Golden: a release that computes other proofs can't talk to this one."""
    mine = said()
    welcome = accept(KEY, CHALLENGE, mine, node=SERVER, role="peer")
    assert mine.proof.hex() == GOLDEN_HELLO
    assert welcome.proof.hex() == GOLDEN_WELCOME


def test_another_key_is_refused_by_both() -> None:
    with pytest.raises(NotAllowed, match="another cluster key"):
        accept(KEY, CHALLENGE, said(OTHER), node=SERVER, role="peer")
    mine = said()
    impostor = accept(OTHER, CHALLENGE, said(OTHER), node=SERVER, role="peer")
    with pytest.raises(NotAllowed, match="server's proof"):
        confirm(KEY, CHALLENGE, mine, impostor)


def test_while_the_key_is_changed_every_two_neighbouring_steps_understand_each_other() -> None:
    old, new = b"k" * 32, b"n" * 32
    steps = [Secret(old), Secret(old, (new,)), Secret(new, (old,)), Secret(new)]
    for i, client in enumerate(steps):
        for server in steps[max(0, i - 1) : i + 2]:
            mine = said(client)
            confirm(
                client, CHALLENGE, mine, accept(server, CHALLENGE, mine, node=SERVER, role="peer")
            )
    for client, server in ((steps[0], steps[3]), (steps[3], steps[0])):
        with pytest.raises(NotAllowed):
            accept(server, CHALLENGE, said(client), node=SERVER, role="peer")


def test_an_empty_key_is_never_taken_beside_another_one() -> None:
    with pytest.raises(NotAllowed):
        accept(
            Secret(b"k" * 32, (b"n" * 32,)), CHALLENGE, said(Secret(b"")), node=SERVER, role="peer"
        )


def test_a_replayed_hello_meets_another_nonce() -> None:
    fresh = Challenge(b"t" * NONCE_BYTES, VERSIONS)
    with pytest.raises(NotAllowed):
        accept(KEY, fresh, said(), node=SERVER, role="peer")


def test_a_reflected_proof_is_no_welcome() -> None:
    mine = said()
    with pytest.raises(NotAllowed):
        confirm(KEY, CHALLENGE, mine, Welcome(SERVER, mine.proof))


@pytest.mark.parametrize(
    "change",
    [{"nonce": b"d" * NONCE_BYTES}, {"node": 23}, {"proof": b""}, {"proof": b"\0" * 32},
     {"proof": b"x" * 10_000}],
)  # fmt: skip
def test_every_word_is_under_the_proof(change: dict[str, object]) -> None:
    with pytest.raises(NotAllowed):
        accept(KEY, CHALLENGE, msgspec.structs.replace(said(), **change), node=SERVER, role="peer")


def test_versions_cannot_be_downgraded() -> None:
    """Somebody in the middle cuts the list short: the proofs are over different lists."""
    truth = Challenge(CHALLENGE.nonce, (*VERSIONS, max(VERSIONS) + 1))
    with pytest.raises(NotAllowed):
        accept(KEY, truth, said(challenge=CHALLENGE), node=SERVER, role="peer")
    with pytest.raises(RemoteProtocolError):
        accept(KEY, CHALLENGE, msgspec.structs.replace(said(), version=9), node=SERVER, role="peer")


def test_a_role_is_not_another_role() -> None:
    with pytest.raises(RemoteProtocolError):
        accept(KEY, CHALLENGE, said(), node=SERVER, role="agent")
    with pytest.raises(NotAllowed):
        accept(
            KEY, CHALLENGE, msgspec.structs.replace(said(), role="agent"), node=SERVER, role="agent"
        )


def test_a_welcome_names_the_node_that_proved_itself() -> None:
    mine = said()
    welcome = accept(KEY, CHALLENGE, mine, node=SERVER, role="peer")
    with pytest.raises(NotAllowed):
        confirm(KEY, CHALLENGE, mine, Welcome(SERVER + 1, welcome.proof))


@pytest.mark.parametrize(
    "bad",
    [
        *(Challenge(nonce, VERSIONS) for nonce in (b"", b"short", b"x" * 33)),
        *(msgspec.structs.replace(said(), nonce=nonce) for nonce in (b"", b"short", b"x" * 33)),
        *(msgspec.structs.replace(said(), node=node) for node in (-1, 0, 1 << 63)),
        *(Welcome(node, b"") for node in (-1, 1 << 63)),
    ],
)
def test_nonces_have_one_length_and_nodes_are_63_bits(bad: Challenge | Hello | Welcome) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(bad), type=type(bad))


def test_the_newest_common_version_is_chosen() -> None:
    assert choose_version([0, *VERSIONS, 99]) == max(VERSIONS)
    with pytest.raises(RemoteProtocolError, match="upgrade"):
        choose_version([99])
    with pytest.raises(RemoteProtocolError):
        choose_version([])


def test_the_key_shows_in_no_repr() -> None:
    assert "k" * 5 not in f"{KEY!r} {KEY}"


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32),
       st.integers(1, 2**63 - 1), st.integers(0, 2**63 - 1))  # fmt: skip
def test_any_honest_pair_agrees(server: bytes, client: bytes, one: int, two: int) -> None:
    challenge = Challenge(server, VERSIONS)
    mine = hello(KEY, challenge, nonce=client, node=one, role="agent")
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(mine), type=Hello)
    confirm(KEY, challenge, mine, accept(KEY, challenge, wire, node=two, role="agent"))
