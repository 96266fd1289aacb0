"""Where a simulated node stands, and the links between two nodes."""

from dataclasses import dataclass

from p2pcache.sim.cluster.network import Link


@dataclass(frozen=True, slots=True)
class Place:
    """A node's rack and disk.

    All nodes of a rack share its links. A disk that is slower than the network card holds up bytes that come in, since
    the kernel makes writers wait. Bytes that go out were proved a moment ago and come from the page cache.
    """

    rack: str = ""  # that the tracker is told; "": none
    way_out: Link | None = None  # from the rack to all other racks
    way_in: Link | None = None  # into the rack, from all others and from the origin
    disk: Link | None = None  # None: it is never slower than the network


def path(a: Place, up: Link, b: Place, down: Link) -> list[Link]:
    """The links from one node to another."""
    links = [up, down]
    if b.disk is not None:
        links.append(b.disk)
    if a.way_out is not None and b.way_in is not None and a.way_in is not b.way_in:
        links += [a.way_out, b.way_in]
    return links
