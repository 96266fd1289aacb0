"""Addresses of this machine: those that listen, and those that others can dial."""

import contextlib
import logging
import socket
from ipaddress import ip_address

_log = logging.getLogger(__name__)

EVERY_ADDRESS = "::"  # its socket takes IPv4, too


def is_wildcard(host: str) -> bool:
    """Whether a host means all our addresses when listening; no peer can dial it."""
    with contextlib.suppress(OSError):
        return socket.inet_aton(host) == bytes(4)  # "0" is one, too
    with contextlib.suppress(ValueError):
        return ip_address(host).is_unspecified
    return False


def host_to_bind(host: str) -> str:
    """The host to listen on: `::` for `0.0.0.0` on a machine that others reach by IPv6 alone, else itself."""
    of_ipv4 = is_wildcard(host) and ":" not in host
    ipv6_alone = of_ipv4 and not _addresses(socket.AF_INET) and _addresses(socket.AF_INET6)
    if not ipv6_alone:
        return host
    _log.info("listening on [%s] for %s, as this machine has no IPv4 address", EVERY_ADDRESS, host)
    return EVERY_ADDRESS


def host_for_peers(host: str) -> str:
    """The host to listen on for other nodes: `::` for `0.0.0.0`, as we announce the address that meets the tracker."""
    return EVERY_ADDRESS if is_wildcard(host) and socket.has_dualstack_ipv6() else host


def first_address() -> str:
    """The first address of an interface that is up, beyond loopback, IPv4 before IPv6; "" if there is none."""
    return next(iter(_addresses(socket.AF_INET) + _addresses(socket.AF_INET6)), "")


def take_ipv4_too(sock: socket.socket, host: str) -> None:
    """Let a socket that is about to be bound to `::` take IPv4, whatever the system's default is."""
    if sock.family == socket.AF_INET6 and is_wildcard(host):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)


def _addresses(family: socket.AddressFamily) -> list[str]:
    """Addresses of interfaces that are up, which other machines can dial."""
    import psutil  # a node on loopback doesn't ask, and starts sooner

    stats = psutil.net_if_stats()
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            text = address.address.partition("%")[0]
            if address.family != family or name not in stats or not stats[name].isup:
                continue
            number = ip_address(text)
            of_this_link = number.version == 6 and number.is_link_local
            if not number.is_loopback and not of_this_link:
                found.append(text)
    return found
