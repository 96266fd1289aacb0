"""What `0.0.0.0` and `[::]` listen on, and which of our addresses reaches that."""

import socket
from types import SimpleNamespace

import psutil
import pytest

from p2pcache.io.http import own_addresses
from p2pcache.io.http.own_addresses import first_address, host_for_peers, host_to_bind
from p2pcache.io.http.server import listen_tcp
from p2pcache.io.peers.serve.listener import bind

LOOPBACK = [
    (socket.AF_INET, "127.0.0.1"),
    (socket.AF_INET6, "::1"),
    (socket.AF_INET6, "fe80::1%eth0"),
]
V4, V6 = (socket.AF_INET, "10.0.0.7"), (socket.AF_INET6, "fd77::2")


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> object:
    """Give this machine other addresses."""

    def give(*addresses: tuple[socket.AddressFamily, str]) -> None:
        found = [SimpleNamespace(family=f, address=a) for f, a in [*LOOPBACK, *addresses]]
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": found})
        monkeypatch.setattr(psutil, "net_if_stats", lambda: {"eth0": SimpleNamespace(isup=True)})

    return give


@pytest.mark.parametrize(
    ("addresses", "bound", "first"),
    [([V4], "0.0.0.0", V4[1]), ([V4, V6], "0.0.0.0", V4[1]), ([V6], "::", V6[1]), ([], "0.0.0.0", "")],
)  # fmt: skip
def test_the_ipv4_wildcard(have, addresses, bound: str, first: str) -> None:  # type: ignore[no-untyped-def]
    have(*addresses)
    assert host_to_bind("0.0.0.0") == bound
    assert host_to_bind("::") == "::"
    assert host_to_bind("10.0.0.7") == "10.0.0.7"
    assert first_address() == first


@pytest.mark.parametrize(("dual", "bound"), [(True, "::"), (False, "0.0.0.0")])
def test_peers_are_listened_for_by_both_families(
    monkeypatch: pytest.MonkeyPatch, *, dual: bool, bound: str
) -> None:
    """A node on `0.0.0.0` told a tracker that it meets by IPv6 an IPv4 address, which IPv6-only peers can't dial."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: dual)
    assert host_for_peers("0.0.0.0") == bound
    assert host_for_peers("::") == "::"
    assert host_for_peers("10.0.0.7") == "10.0.0.7"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
async def test_the_ipv6_wildcard_takes_ipv4_too() -> None:
    for sock in (listen_tcp("[::]:0"), await bind("::", 0)):
        with sock:
            for host in ("127.0.0.1", "::1"):
                socket.create_connection((host, sock.getsockname()[1]), timeout=5).close()


async def test_on_a_machine_without_ipv4_the_ipv4_wildcard_answers_by_ipv6(have) -> None:  # type: ignore[no-untyped-def]
    have(V6)
    with listen_tcp("0.0.0.0:0") as sock:
        socket.create_connection(("::1", sock.getsockname()[1]), timeout=5).close()
    assert own_addresses.is_wildcard(host_to_bind("0.0.0.0"))
