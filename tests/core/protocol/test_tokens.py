"""Tokens against whoever holds one, finds one, or would like to have another one."""

import base64
import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.protocol import tokens
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.protocol.tokens import EVERY, Rights, Scope, Token
from p2pcache.errors import NotAllowed, UsageError

KEY = tokens.signing_key(Secret(b"k" * 32))
OTHER = tokens.signing_key(Secret(b"o" * 32))
NOW = 1_790_000_000.0
GOLDEN = "eDly_DNqQMDW8Oy54sJZEtEz1Bd5SMvGIGKmzo0rhLE"


def token(
    scope: Scope = Scope.PULL, namespaces: tuple[str, ...] = ("team",), life_s: float = 3600
) -> Token:
    return tokens.make(
        token_id="0011", name="ci@build", scope=scope, namespaces=namespaces, now=NOW, life_s=life_s
    )


def forged(text: str, **changes: object) -> str:
    """The same token with other words in it, and the old signature."""
    version, _, mac = text.split(".")
    fields = msgspec.to_builtins(tokens.peek(text)) | changes
    body = base64.urlsafe_b64encode(msgspec.json.encode(fields)).rstrip(b"=").decode()
    return f"{version}.{body}.{mac}"


def test_round_trip() -> None:
    text = tokens.sign(KEY, token())
    assert tokens.verify(KEY, text, NOW) == token() == tokens.peek(text)
    assert set(text) <= set(string.ascii_letters + string.digits + "-_.")
    assert len(text) < 256


def test_the_signature_is_what_it_was() -> None:
    """Golden: agents of two releases must agree."""
    assert tokens.sign(KEY, token()).rpartition(".")[2] == GOLDEN


def test_the_mac_key_is_not_the_file_key() -> None:
    assert KEY.key != b"k" * 32
    with pytest.raises(NotAllowed, match="signature"):
        tokens.verify(Secret(b"k" * 32), tokens.sign(KEY, token()), NOW)
    with pytest.raises(UsageError, match="key"):
        tokens.signing_key(Secret(b""))


def test_another_key_is_refused() -> None:
    with pytest.raises(NotAllowed, match="another key"):
        tokens.verify(OTHER, tokens.sign(KEY, token()), NOW)


@pytest.mark.parametrize(
    "changes",
    [{"scope": "admin"}, {"namespaces": ["*"]}, {"expires": 2**40}, {"name": "root"}, {"extra": 1}],
)
def test_widened_tokens_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(NotAllowed, match="signature"):
        tokens.verify(KEY, forged(tokens.sign(KEY, token()), **changes), NOW)


def test_an_unknown_field_may_narrow_so_it_is_refused_even_if_signed() -> None:
    body = forged(tokens.sign(KEY, token()), only_on_weekdays=True).rpartition(".")[0]
    with pytest.raises(NotAllowed, match="doesn't know"):
        tokens.verify(KEY, f"{body}.{tokens._mac(KEY.key, body)}", NOW)


def test_a_token_is_valid_from_its_issue_to_its_expiry() -> None:
    text = tokens.sign(KEY, token(life_s=60))
    tokens.verify(KEY, text, NOW + 59)
    with pytest.raises(NotAllowed, match="expired"):
        tokens.verify(KEY, text, NOW + 60)
    tokens.verify(KEY, text, NOW - tokens.CLOCK_SKEW_S)
    with pytest.raises(NotAllowed, match="clock"):
        tokens.verify(KEY, text, NOW - tokens.CLOCK_SKEW_S - 1)


@pytest.mark.parametrize(
    "text", ["", ".", "..", "p2pc1", "p2pc1..", "Bearer x", "é.é.é", "p2pc2.e30.x", "p2pc1." + "A" * 5000]
)  # fmt: skip
def test_texts_that_are_no_token(text: str) -> None:
    with pytest.raises(NotAllowed) as caught:
        tokens.verify(KEY, text, NOW)
    assert "\n" not in str(caught.value)
    if text:
        assert text not in str(caught.value)
    with pytest.raises(NotAllowed):
        tokens.peek(text)


@given(st.integers(0, 300), st.integers(0, 127))
def test_any_other_letter_anywhere_is_refused(place: int, letter: int) -> None:
    text = tokens.sign(KEY, token())
    place %= len(text)
    changed = text[:place] + chr(letter) + text[place + 1 :]
    if changed != text:
        with pytest.raises(NotAllowed):
            tokens.verify(KEY, changed, NOW)


@given(st.text(max_size=300))
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(NotAllowed):
        tokens.verify(KEY, text, NOW)


def test_scopes_include_those_below() -> None:
    for n, held in enumerate(Scope):
        for m, needed in enumerate(Scope):
            assert Rights(held, (EVERY,)).allow(needed, "x") == (m <= n)


def test_namespaces() -> None:
    some = Rights(Scope.PULL, ("a", "b"))
    assert some.allow(Scope.PULL, "a")
    assert some.allow(Scope.PULL)
    assert not some.allow(Scope.PULL, "c")
    assert not some.allow(Scope.PULL, EVERY)  # what concerns the node
    assert Rights(Scope.PULL, (EVERY,)).allow(Scope.PULL, EVERY)


@pytest.mark.parametrize(
    "wrong",
    [{"name": ""}, {"name": "a b"}, {"name": "x" * 65}, {"name": "a\n"}, {"namespaces": ()},
     {"namespaces": ("Team",)}, {"namespaces": ("../x",)}, {"namespaces": ("a",) * 33},
     {"life_s": 0.0}, {"life_s": 400 * 86400.0}],
)  # fmt: skip
def test_tokens_that_cannot_be_made(wrong: dict[str, object]) -> None:
    good: dict[str, object] = {
        "token_id": "0", "name": "n", "scope": Scope.PULL, "namespaces": ("a",), "now": NOW, "life_s": 9.0,
    }  # fmt: skip
    with pytest.raises(UsageError):
        tokens.make(**(good | wrong))  # type: ignore[arg-type]


def test_while_the_key_is_changed_tokens_of_both_keys_are_good() -> None:
    both = tokens.signing_key(Secret(b"o" * 32, (b"k" * 32,)))
    for key in (KEY, OTHER):
        assert tokens.verify(both, tokens.sign(key, token()), NOW) == token()
    assert tokens.verify(OTHER, tokens.sign(both, token()), NOW) == token()
    with pytest.raises(NotAllowed):
        tokens.verify(KEY, tokens.sign(both, token()), NOW)
