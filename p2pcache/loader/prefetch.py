"""Lets the node's agent fetch the chunks of some tensors; their bytes don't come to this process."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from p2pcache.ids import Ref
from p2pcache.io.http.client import AgentClient
from p2pcache.loader.plan.batches import batches
from p2pcache.loader.plan.selection import select_tensors
from p2pcache.loader.source.agent_source import AgentSource
from p2pcache.loader.source.base import Range, Source
from p2pcache.loader.source.catalog import open_catalog
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource

_PROGRESS_S = 0.25  # between two progress events

Event = dict[str, Any]


def prefetch_tensors(
    client: AgentClient, ref: Ref, names: Sequence[str], *, models_dir: Path | None = None
) -> Generator[Event, None, None]:
    """Fetch headers, index and the chunks of matching tensors into the agent's cache.

    Args:
        client: of the agent.
        ref: the model.
        names: globs; a tensor that matches one of them is fetched.
        models_dir: where this process sees the agent's models directory; None: where the agent does.

    Yields:
        `progress` events, then `done`.

    Raises:
        NotFound: no such model, or no matching tensor.
        P2PCacheError: the agent's own error.
    """
    attached = AgentSource.attach(client, ref, needed=True, models_dir=models_dir)
    source: Source = (
        attached if attached.tree is None else DirectorySource(attached.tree, attached.name)
    )
    try:
        catalog = open_catalog(source, Deadline(None, source.name))
        items = select_tensors(list(catalog.tensors.values()), list(names))
        ranges = [r for batch in batches(items) for r in batch.ranges()]
        source.on_planned(ranges)
        yield from _follow(source, ranges)
    finally:
        source.close()
        attached.close()
    stats = attached.stats()
    yield {
        "event": "done", "ref": str(ref), "digest": attached.digest, "tensors": len(items),
        "tensors_total": len(catalog.tensors), "bytes": sum(r.end - r.start for r in ranges),
        "bytes_origin": stats.bytes_origin, "bytes_peers": stats.bytes_peers,
    }  # fmt: skip


def _follow(source: Source, ranges: Sequence[Range]) -> Generator[Event, None, None]:
    total = sum(r.end - r.start for r in ranges)
    left = [r for r in ranges if not source.available(*r)]
    while left:
        source.wait(left, _PROGRESS_S)
        left = [r for r in left if not source.available(*r)]
        stats = source.stats()
        yield {
            "event": "progress", "bytes_done": total - sum(r.end - r.start for r in left),
            "bytes_total": total, "bytes_origin": stats.bytes_origin, "bytes_peers": stats.bytes_peers,
        }  # fmt: skip
