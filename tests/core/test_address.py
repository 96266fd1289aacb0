"""Addresses of peers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import address
from p2pcache.errors import RemoteProtocolError


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
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
def test_no_addresses(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="not a peer address"):
        address.split(text)
