"""Addresses of peers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.protocol import address
from p2pcache.errors import RemoteProtocolError


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_is_refused(text: str) -> None:
    try:
        host, port = address.split(text)
    except RemoteProtocolError:
        return
    assert host
    assert 0 < port < 65536


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:7401", "10.0.0.1", 7401),
        ("[fe80::1]:1", "fe80::1", 1),
        ("node-7.cluster.local:65535", "node-7.cluster.local", 65535),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert address.split(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.1", ":7401", "[]:7401", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:0", "10.0.0.1:65536",
     "10.0.0.1:-1", "10.0.0.1:\N{SUPERSCRIPT TWO}", "10.0.0.1:0000801000000", "10.0.0.1:" + 30 * "9"],
)  # fmt: skip
def test_texts_that_are_no_addresses(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="not a peer address"):
        address.split(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("10.0.0.7:7401", "10.0.0.7:7401"),
        ("[10.0.0.7]:07401", "10.0.0.7:7401"),
        ("fd00::7:7401", "[fd00::7]:7401"),
        ("[fe80::1%eth0]:1", "[fe80::1%eth0]:1"),
        ("node-7.cluster.local:7401", "node-7.cluster.local:7401"),
        (250 * "n" + ":07401", 250 * "n" + ":7401"),
        ("7.example:1", "7.example:1"),
    ],
)
def test_the_canonical_form_of_addresses(text: str, told: str) -> None:
    assert address.canonical(text) == told
    assert address.canonical(told) == told


@pytest.mark.parametrize(
    "text",
    ["node-7", "node-7:0", "node-7:0007401", "[::]:7401", "[::0]:7401", "0.0.0.0:7401", "0:7401", "00.0.0.0:7401",
     "10.1:7401", "0x7f000001:1", "*:7401", " 10.0.0.7:7401", "n 7:7401", "n\x1b:7401", "n/x:7401",
     "[nonsense::zz:]:7401", "fd00::7", "224.0.0.1:7401", "http://n:7401"],
)  # fmt: skip
def test_addresses_that_nobody_could_dial(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        address.canonical(text)
