"""Where a stranger's torrent may send us: not to this machine nor its link, unless the operator says so.

A torrent names trackers and web seeds, and trackers name peers. Each could be a service that trusts this machine, such
as a cloud's metadata. URLs are looked at first, to say what is left out; what their names resolve to, redirects and
peers are refused by libtorrent's own filter.
"""

import ipaddress
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from p2pcache.io.torrents.library import libtorrent

_NETS = [
    ipaddress.ip_network(net)
    for net in (
        "0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4",  # this host, link, groups
        "::/127", "fe80::/10", "ff00::/8",
        "::ffff:0.0.0.0/96",  # IPv4 in other clothes
        "64:ff9b::7f00:0/104", "64:ff9b::a9fe:0/112",  # loopback and link behind NAT64
        "fd00:ec2::254/128",  # a cloud's metadata
    )
]  # fmt: skip
_SCHEMES = ("http", "https", "udp")


def refusal(url: str, *, local: bool) -> str:
    """Why a URL of a torrent isn't used, in words for people; "" if it is.

    Args:
        url: of a tracker or web seed.
        local: the operator allows this machine and the link's own services.
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        _ = parts.port
    except ValueError:
        return "it is no URL"
    if parts.scheme not in _SCHEMES or not host:
        return "it is neither http, https nor udp"
    if not local and (host == "localhost" or host.endswith(".localhost") or _forbidden(host)):
        return "it leads to this machine or its link; --allow-local allows it"
    return ""


def _forbidden(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False  # a name: the filter sees what it resolves to
    return any(address in net for net in _NETS if net.version == address.version)


def forbidding_filter() -> Any:
    """The filter of a session, for peers, trackers and web seeds, whatever their names resolve to."""
    lt = libtorrent()
    found = lt.ip_filter()
    for net in _NETS:
        found.add_rule(str(net[0]), str(net[-1]), 1)
    return found


def used(urls: Iterable[str], *, local: bool) -> tuple[list[str], list[str]]:
    """The URLs that are used, and a line for each that isn't."""
    good: list[str] = []
    refused: list[str] = []
    for url in urls:
        why = refusal(url, local=local)
        if why:
            refused.append(f"{url[:200]} isn't used: {why}")
        else:
            good.append(url)
    return good, refused
