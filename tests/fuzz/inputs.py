"""What strangers send: valid inputs with a few faults, which get further than noise does."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

TOKENS = [
    b"", b"\0", b"\xff", b"..", b"/", b"{}", b"[]", b'"', b"null", b"-1", b"1e999", b"NaN", b"\\ud800", b"\xc3\x28",
    b"9" * 40, b"[" * 2000, b'{"a":' * 500, b"\x93" * 300, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """One of the valid inputs, with up to four places cut, doubled or replaced."""
    data = bytearray(draw(st.sampled_from(list(valid))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.sampled_from([0, 1, 1, 2, 8, 64, 4096])))
        match draw(st.integers(0, 3)):
            case 0:
                data[at:end] = draw(st.sampled_from(TOKENS))
            case 1:
                data[at:end] = draw(st.binary(max_size=8))
            case 2:
                data[at:at] = data[at:end] * draw(st.integers(1, 5))
            case _:
                del data[at:end]
    return bytes(data)


NUMBERS = st.sampled_from(
    [0, 1, -1, 7, 255, 1 << 31, (1 << 32) - 1, 1 << 53, (1 << 63) - 1, 1 << 63]
)
TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "",
            "a" * 64,
            "ab" * 32,
            "team/m:v1",
            "127.0.0.1:1",
            "[::1]:0",
            "x:99999",
            "../x",
            "\u202e",
            "a" * 5000,
        ]
    ),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), NUMBERS, st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), TEXTS,
        st.binary(max_size=40),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip


@st.composite
def changed(draw: st.DrawFn, valid: Sequence[msgspec.Struct]) -> bytes:
    """A message of a protocol whose fields have other values, of any type; mostly only one or two."""
    message = draw(st.sampled_from(list(valid)))
    fields: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(min(1, len(fields) - 1), len(fields) - 1))  # the tag stays
        fields[at] = draw(VALUES)
    if draw(st.integers(0, 9)) == 0:
        del fields[draw(st.integers(0, len(fields))) :]
    try:
        return msgspec.msgpack.encode(fields)
    except (OverflowError, UnicodeEncodeError):
        return b"\xc1"
