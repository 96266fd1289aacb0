"""Who makes room when strangers hold every place: the oldest one of the address that most of them come from. Pure.

Whoever comes alone, or with few others, is then never the one to go while somebody holds more.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
_SUBNET = 64  # bits; one host may take any address of its own subnet


def crowd_of(address: str) -> str:
    """What counts as one address: an IPv4 address, a subnet of IPv6."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _SUBNET), strict=False))


def oldest_of_the_crowd(guests: Iterable[T], crowd: Callable[[T], str]) -> T | None:
    """Who goes first; None: nobody is here.

    Args:
        guests: oldest first.
        crowd: where a guest comes from, as of `crowd_of`.
    """
    everybody = list(guests)
    most = Counter(crowd(guest) for guest in everybody).most_common(1)
    return next((guest for guest in everybody if crowd(guest) == most[0][0]), None)
