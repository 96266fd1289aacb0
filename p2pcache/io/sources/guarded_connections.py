"""Connections to servers of others: only to allowed addresses, and with a time limit for each answer's head."""

import ipaddress
import socket
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from p2pcache.errors import UsageError
from p2pcache.io.http.time_limit import in_time
from p2pcache.io.origins.causes import one_line

MAX_URL_CHARS = 8192  # a signed URL of a cloud has some 1,500
HEAD_S = 60.0  # until the head of an answer is whole; a hub may look for seconds
_PORTS = {"http": 80, "https": 443}


class Site(NamedTuple):
    """What credentials are for: a scheme, a host and a port."""

    scheme: str
    host: str
    port: int


def site_of(url: str) -> Site:
    """The site of a URL.

    Raises:
        UsageError: it isn't one of http or https.
    """
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if len(url) > MAX_URL_CHARS or not host or scheme not in _PORTS:
        raise UsageError(f"not an http or https URL: {one_line(url)!a}")
    return Site(scheme, host, port or _PORTS[scheme])


class RefusedAddress(Exception):
    """An address that mustn't be connected to. No error of urllib3's, so that nothing retries it."""


class Guard:
    """Which addresses may be connected to."""

    def __init__(self, own: Site, *, private: bool) -> None:
        self._own = own
        self._private = private

    def allowed(self, host: str, port: int) -> str:
        """An address of a host that may be connected to.

        Raises:
            RefusedAddress: there is none.
            OSError: the name can't be resolved.
        """
        own = (host, port) == self._own[1:]
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for _, _, _, _, (address, *_rest) in found:
            if self._good(str(address), own=own, literal=str(address) == host):
                return str(address)
        raise RefusedAddress(f"{host} is a private, loopback or link-local address")

    def _good(self, text: str, *, own: bool, literal: bool) -> bool:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address
        address = ipaddress.ip_address(text.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_link_local:  # there clouds hand out credentials
            return own and literal
        return own or self._private or (address.is_global and not address.is_multicast)


def guard_connections(pools: urllib3.PoolManager, guard: Guard) -> None:
    """Let all connections of `pools` ask the guard before they connect."""
    http = type("_Http", (HTTPConnectionPool,), {"ConnectionCls": _guarded(HTTPConnection, guard)})
    https = type(
        "_Https", (HTTPSConnectionPool,), {"ConnectionCls": _guarded(HTTPSConnection, guard)}
    )
    pools.pool_classes_by_scheme = {"http": http, "https": https}


def _guarded(kind: Any, guard: Guard) -> Any:

    class Guarded(kind):  # type: ignore[misc]
        _dns_host: str  # what urllib3 connects to; `host` is what it asks for
        sock: socket.socket | None

        def getresponse(self) -> Any:
            with in_time(self.sock, HEAD_S):
                return super().getresponse()

        def _new_conn(self) -> socket.socket:
            name = self._dns_host
            try:
                self._dns_host = guard.allowed(self.host, self.port)
                made: socket.socket = super()._new_conn()
                return made
            finally:
                self._dns_host = name

    return Guarded
