"""Where a peer says it can be dialled: "host:port" or "[v6]:port"; and the URLs of trackers."""

import re
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from p2pcache.errors import RemoteProtocolError, UsageError

_NAME = re.compile(r"[^\s:/%\[\]*]+")  # refuses slips of the pen only; the resolver judges the rest
_NUMBER = re.compile(r"[0-9.]+|0[xX].*")  # a resolver takes "0" and "10.1" for addresses
MAX_LENGTH = 255  # characters: a JOIN has one byte for the length
_PORT_DIGITS = 5  # bounds the work for a number of any length


def split(address: str) -> tuple[str, int]:
    """Host (a name, or an IP address without brackets) and port (1 to 65535).

    Raises:
        RemoteProtocolError: it isn't an address.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS and int(port)
    if not host or not 0 < number < 65536:
        raise RemoteProtocolError(f"not a peer address: {address[:80]!r}")
    return host, number


def canonical(address: str) -> str:
    """The one form of a node's address in which others are told it, with IPv6 in brackets.

    Raises:
        RemoteProtocolError: nobody could dial the address, or it is too long or not ASCII.
    """
    host, port = split(address)
    if not _is_of_a_node(host):
        raise RemoteProtocolError(f"not an address that a node can have: {address[:80]!r}")
    told = join(host, port)
    if not (told.isascii() and told.isprintable()) or len(told) > MAX_LENGTH:
        raise RemoteProtocolError(f"not at most {MAX_LENGTH} ASCII characters: {address[:80]!r}")
    return told


def join(host: str, port: int) -> str:
    """The inverse of `split`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tracker_url(text: str) -> str:
    """The URL of a tracker, without a slash at its end.

    Raises:
        UsageError: it is none, or holds a user or a password: messages and answers show the URL.
    """
    if "@" in text:
        raise UsageError(
            "the tracker's URL holds a user or a password; a member shows the cluster key or a certificate instead: "
            "leave out what stands before the @"
        )
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"not a tracker's URL: {text!r}; expected http://HOST:PORT")
    return text.rstrip("/")


def tracker_urls(text: str) -> tuple[str, ...]:
    """The URLs of a list of trackers, separated by commas, each once, in order.

    Raises:
        UsageError: one of them is no tracker's URL.
    """
    return tuple(dict.fromkeys(tracker_url(url.strip()) for url in text.split(",") if url.strip()))


def can_be_tried(address: str) -> bool:
    """Whether a dial may be spent on this, whoever said it: it is a number that a node can have.

    A name would need a resolver, and link-local numbers are those of services of the machine or the cloud.
    """
    try:
        host, _ = split(address)
    except RemoteProtocolError:
        return bool(address)  # nobody can dial that, and the attempt ends at once
    try:
        number = ip_address(host)
    except ValueError:
        return False
    if isinstance(number, IPv6Address):
        if number.scope_id is not None:
            return False  # a name of one of our interfaces
        number = number.ipv4_mapped or number
    return not (number.is_link_local or number.is_multicast or number.is_unspecified)


def _is_of_a_node(host: str) -> bool:
    try:
        number = ip_address(host)
    except ValueError:
        return bool(_NAME.fullmatch(host)) and not _NUMBER.fullmatch(host)
    return not (number.is_unspecified or number.is_multicast)
