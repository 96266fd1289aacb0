"""Which of many strangers makes room when they hold every place: the oldest of the address that most of them come from.

A stranger that comes alone, or with few others, never has to go while another address holds more places.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
_SUBNET = 64  # bits; one host may take any address of its own subnet


def crowd_of(address: str) -> str:
    """What counts as one address: an IPv4 address, or a subnet of IPv6."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((parsed, _SUBNET), strict=False))


def oldest_of_the_crowd(guests: Iterable[T], crowd: Callable[[T], str]) -> T | None:
    """Of guests, oldest first, the one that goes; `crowd` says where one comes from, as of `crowd_of`."""
    present = list(guests)
    most = Counter(map(crowd, present)).most_common(1)
    return next((guest for guest in present if crowd(guest) == most[0][0]), None)
