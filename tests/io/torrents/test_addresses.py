"""Where a stranger's torrent may send us."""

import pytest

from p2pcache.io.torrents.addresses import forbidding_filter, refusal

LOCAL = [
    "http://127.0.0.1/x", "http://127.9.9.9:80/x", "http://localhost:8080/x", "http://a.localhost./x",
    "http://[::1]/x", "http://0.0.0.0/x", "http://169.254.169.254/latest/meta-data", "udp://[fe80::1]:6969",
    "http://[::ffff:127.0.0.1]/x", "http://[::ffff:a9fe:a9fe]/x", "http://[fd00:ec2::254]/x",
    "https://[64:ff9b::a9fe:a9fe]/x", "http://224.0.0.1/x", "http://user:pw@127.0.0.1/x",
]  # fmt: skip
NEVER = [
    "file:///etc/passwd",
    "gopher://h/x",
    "http://",
    "http://h:99999/",
    "http://[",
    "wss://h/x",
    "x",
]
GOOD = [
    "http://tracker.example/announce",
    "https://10.0.0.7/x",
    "udp://[2001:db8::1]:6969/announce",
]


@pytest.mark.parametrize("url", LOCAL)
def test_this_machine_and_its_link_only_if_the_operator_says_so(url: str) -> None:
    assert "--allow-local" in refusal(url, local=False)
    assert refusal(url, local=True) == ""


@pytest.mark.parametrize("url", NEVER)
def test_other_schemes_never(url: str) -> None:
    assert refusal(url, local=False)
    assert refusal(url, local=True)


@pytest.mark.parametrize("url", GOOD)
def test_others_are_used(url: str) -> None:
    assert refusal(url, local=False) == ""


def test_the_filter_knows_the_same_addresses() -> None:
    pytest.importorskip("libtorrent")
    found = forbidding_filter()
    for address in (
        "127.0.0.1",
        "127.255.255.255",
        "169.254.169.254",
        "0.0.0.0",
        "::1",
        "fe80::9",
        "::ffff:7f00:1",
    ):
        assert found.access(address), address
    for address in ("10.0.0.7", "128.0.0.1", "2001:db8::1", "fd00::1"):
        assert not found.access(address), address
