"""The refs that a cache has, quickly: for a shell's Tab key."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from p2pcache.cli.support.connect import cache_dir, find_agent, load, time_limit
from p2pcache.ids import Ref

PATIENCE_S = 1.0  # who pressed Tab waits no longer
FLAGS = ("agent", "token_file", "origin", "tracker", "cache_dir")


def known_refs(given: Mapping[str, Any]) -> list[str]:
    """Refs of the agent's cache, or of our own where there is no agent.

    Args:
        given: options of the command line so far, by name.

    Raises:
        P2PCacheError: the agent doesn't answer, or not in time.
    """
    loaded = load(given.get("config"), {name: given.get(name) for name in FLAGS})
    with time_limit(PATIENCE_S):
        client = find_agent(loaded)
        if client is None:
            return sorted(_published(cache_dir(loaded.settings) / "models"))
        found = {ref for model in client.models() for ref in model.get("refs") or [model["ref"]]}
        return sorted(ref for ref in found if not ref.startswith("@"))


def _published(models: Path) -> Iterator[str]:
    """What tags are linked in a cache; without its lock, for somebody else may hold it for an hour."""
    for tag in models.glob("*/*/*"):
        if tag.is_symlink():
            yield Ref(tag.parent.parent.name, tag.parent.name, tag.name).short
