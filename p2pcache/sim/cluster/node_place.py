"""Where a simulated node stands, and what lies between two of them."""

from dataclasses import dataclass

from p2pcache.sim.cluster.network import Link


@dataclass(frozen=True, slots=True)
class Place:
    """A node's rack and disk.

    The links of a rack are shared by all its nodes. A disk that is slower than the network card
    holds up what comes in (the kernel makes writers wait); what goes out was proved a moment ago
    and is in the page cache.
    """

    rack: str = ""  # as the tracker is told; "": none is known
    way_out: Link | None = None  # from the rack to all other racks
    way_in: Link | None = None  # into the rack: from the others, and from the origin
    disk: Link | None = None  # None: fast enough never to matter


def path(a: Place, up: Link, b: Place, down: Link) -> list[Link]:
    """The links from one node to another."""
    links = [up, down]
    if b.disk is not None:
        links.append(b.disk)
    if a.way_out is not None and b.way_in is not None and a.way_in is not b.way_in:
        links += [a.way_out, b.way_in]
    return links
