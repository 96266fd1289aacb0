"""Addresses of peers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.protocol import address
from p2pcache.errors import RemoteProtocolError, UsageError


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


@pytest.mark.parametrize(
    "url", ["http://tracker:7400", "https://tracker.test", "http://[fd00::7]:7400"]
)
def test_urls_of_a_tracker(url: str) -> None:
    assert address.tracker_url(url) == address.tracker_url(f"{url}/") == url


@pytest.mark.parametrize(
    "url",
    [
        "tracker:7400",
        "ftp://tracker:7400",
        "http://",
        "10.0.0.1:7400",
        "http://[::1",
        "http://t:x",
        "http://t:99999",
        "",
    ],
)
def test_what_is_no_url_of_a_tracker(url: str) -> None:
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        address.tracker_url(url)


@pytest.mark.parametrize("user", ["u:s3cret@", "s3cret@", ":s3cret@"])
def test_a_password_in_the_url_of_a_tracker_is_refused_and_not_repeated(user: str) -> None:
    """Status, logs and a login-free probe showed it."""
    for url in (f"http://{user}tracker:7400", f"http://{user}tracker:x"):
        with pytest.raises(UsageError) as refused:
            address.tracker_url(url)
        assert "s3cret" not in str(refused.value)
