"""The chunks of some tensors into the node's cache, without their bytes coming to this process."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from p2pcache.ids import Ref
from p2pcache.io.http.client import AgentClient
from p2pcache.loader.plan.batches import batches
from p2pcache.loader.plan.selection import choose
from p2pcache.loader.source.agent_source import SwarmSource
from p2pcache.loader.source.base import Range, Source
from p2pcache.loader.source.catalog import open_catalog
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource

_LOOK_S = 0.25  # progress is told so often

Event = dict[str, Any]


def bring(
    client: AgentClient, ref: Ref, names: Sequence[str], *, models_dir: Path | None = None
) -> Generator[Event, None, None]:
    """Let the agent fetch headers, index and the chunks of the tensors that match.

    Args:
        client: of the agent.
        ref: the model.
        names: globs; a tensor that matches any is brought.
        models_dir: where this process sees the agent's models directory; None: where the agent does.

    Yields:
        `progress` events, then `done`.

    Raises:
        NotFound: no such model, or no tensor that matches.
        P2PCacheError: the agent's own error.
    """
    swarm = SwarmSource.attach(client, ref, needed=True, models_dir=models_dir)
    source: Source = swarm if swarm.tree is None else DirectorySource(swarm.tree, swarm.name)
    try:
        catalog = open_catalog(source, Deadline(None, source.name))
        wants = choose(list(catalog.tensors.values()), list(names))
        ranges = [r for batch in batches(wants) for r in batch.ranges()]
        source.want(ranges)
        yield from _follow(source, ranges)
    finally:
        source.close()
        swarm.close()
    stats = swarm.stats()
    yield {
        "event": "done", "ref": str(ref), "digest": swarm.digest, "tensors": len(wants),
        "tensors_total": len(catalog.tensors), "bytes": sum(r.end - r.start for r in ranges),
        "bytes_origin": stats.bytes_origin, "bytes_peers": stats.bytes_peers,
    }  # fmt: skip


def _follow(source: Source, ranges: Sequence[Range]) -> Generator[Event, None, None]:
    total = sum(r.end - r.start for r in ranges)
    left = [r for r in ranges if not source.available(*r)]
    while left:
        source.wait(left, _LOOK_S)
        left = [r for r in left if not source.available(*r)]
        stats = source.stats()
        yield {
            "event": "progress", "bytes_done": total - sum(r.end - r.start for r in left),
            "bytes_total": total, "bytes_origin": stats.bytes_origin, "bytes_peers": stats.bytes_peers,
        }  # fmt: skip
