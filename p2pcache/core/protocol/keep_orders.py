"""What a tracker orders an agent to keep, and what the agent says of it.

Orders are declarative: all parts together are the whole list for that agent, and replace the list before. A model that
isn't listed is no longer ordered; the node may evict it as any model. An agent
goes by its last list until a whole new one is here, also over its own restart and the tracker's. A tracker sends a list
after `Settled`, as soon as it knows what is to be kept, and again when it changes; only to agents that announced
`keeps`.

Both messages are untrusted input to the other side, which checks digests, names, runs and these limits.
"""

import textwrap
from collections.abc import Iterable, Iterator

import msgspec

MAX_RANGES = 20_000  # in one part: some 200 KB
MAX_ORDERS = 2_000  # in one part: the same, with the longest names
MAX_PARTS = 256  # of one list; an agent refuses longer ones, a tracker leaves out what doesn't fit
MAX_KEPT = 1_000  # models in one report, which is a short message; of more the rest comes with the next one
MAX_DETAIL = 200  # characters of what an agent says of a refusal
REPORT_S = 3.0  # at least, between two reports of one agent

# Why an agent doesn't keep what it was ordered to; "" : it does, or is on its way.
QUOTA = "quota"  # the cache's quota has no room for it
NO_SPACE = "no_space"  # the disk hasn't
NO_MANIFEST = "no_manifest"  # nobody has the manifest, neither the tracker nor the origin
NOT_ALLOWED = "not_allowed"  # the node's operator forbids it
FAILED = "failed"  # anything else; `detail` says what
REFUSALS = frozenset({QUOTA, NO_SPACE, NO_MANIFEST, NOT_ALLOWED, FAILED})

ROLES = ("seed", "cache", "client")  # of a node; only what names its role is kept on a client
MAX_LABELS = 16  # of a node, each KEY=VALUE


class KeepOrder(msgspec.Struct, array_like=True, frozen=True):
    """Some runs of a model that the node is to have. Several orders for one digest, in any parts, add up."""

    namespace: str
    name: str
    tag: str
    manifest_digest: str  # hex
    ranges: tuple[tuple[int, int], ...]  # (first run, the one after the last), ascending, apart
    whole: bool = (
        False  # all runs: the node shows the model under its tag, as after a pull; no ranges
    )


class KeepOrders(msgspec.Struct, array_like=True, tag=44, frozen=True):
    """One part of the list, tracker to agent. Parts come in order; a part 0 begins a list anew."""

    part: int  # from 0
    parts: int
    orders: tuple[KeepOrder, ...] = ()


class Kept(msgspec.Struct, array_like=True, frozen=True):
    """How one ordered model stands on the node."""

    manifest_digest: str
    refused: str = ""  # one of `REFUSALS`, or ""
    detail: str = ""  # one line for people
    fetched_bytes: int = 0  # for its orders, since the agent started; for people


class KeptReport(msgspec.Struct, array_like=True, tag=12, frozen=True):
    """Agent to tracker: the models whose row changed since the last report; after a new list all of its models."""

    kept: tuple[Kept, ...] = ()


def detail_of(text: str) -> str:
    """What an agent says of a refusal: one line, cut behind a word where it is too long."""
    return textwrap.shorten(text, MAX_DETAIL, placeholder=" ...")


def split(orders: Iterable[KeepOrder]) -> list[KeepOrders]:
    """One list as its parts; an empty list has one part. Orders beyond `MAX_PARTS` are left out."""
    parts: list[list[KeepOrder]] = [[]]
    ranges = 0
    for order in _cut(orders):
        if ranges + len(order.ranges) > MAX_RANGES or len(parts[-1]) >= MAX_ORDERS:
            parts.append([])
            ranges = 0
        parts[-1].append(order)
        ranges += len(order.ranges)
    del parts[MAX_PARTS:]
    return [KeepOrders(number, len(parts), tuple(part)) for number, part in enumerate(parts)]


def _cut(orders: Iterable[KeepOrder]) -> Iterator[KeepOrder]:
    """The orders, those with more ranges than a part holds in several pieces."""
    for order in orders:
        for first in range(0, len(order.ranges) or 1, MAX_RANGES):
            piece = order.ranges[first : first + MAX_RANGES]
            yield msgspec.structs.replace(order, ranges=piece)
