"""The REF and NODE arguments of commands, which a shell's Tab key completes with what the agent knows."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from p2pcache.cli.support.client_options import Loaded, cache_dir, load, time_limit
from p2pcache.cli.support.connect import find_agent, need_agent
from p2pcache.cli.support.options import TextType
from p2pcache.ids import Ref

COMPLETION_TIMEOUT_S = 1.0  # somebody has pressed Tab and waits
FLAGS = ("agent", "token_file", "origin", "tracker", "cache_dir")


class RefType(TextType):
    """A ref. The command parses the value."""

    name = "ref"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer the refs of the cache."""
        return _offered(known_refs, ctx, incomplete)


class NodeType(TextType):
    """A node's name or id. The tracker knows which it is."""

    name = "node"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer the nodes of the cluster, or with `--undo` those that are drained."""
        return _offered(known_nodes, ctx, incomplete)


def known_nodes(given: Mapping[str, Any]) -> list[str]:
    """Return the names of the cluster's nodes, of those that are gone too; ids where a name is none or of several.

    Args:
        given: options of the command line so far, by name.

    Raises:
        P2PCacheError: the agent doesn't answer, or not in time.
    """
    with time_limit(COMPLETION_TIMEOUT_S):
        client = need_agent(_loaded(given))
        if given.get("undo"):
            rows = client.keeps().get("drains", [])
        else:
            known, gone = client.nodes_and_gone()
            rows = [*known, *gone]
    names = Counter(row.get("name") for row in rows)
    return sorted(
        row["name"] if row.get("name") and names[row["name"]] == 1 else row["node"] for row in rows
    )


def _offered(
    known: Callable[[Mapping[str, Any]], list[str]], ctx: click.Context, incomplete: str
) -> list[CompletionItem]:
    """Those that begin so; none when anything fails, since Tab has no place for messages."""
    try:
        given = {**_given(ctx.find_root()), **_given(ctx)}
        return [CompletionItem(word) for word in known(given) if word.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - said above
        return []


def known_refs(given: Mapping[str, Any]) -> list[str]:
    """Return the refs of the agent's cache, or of our own where there is no agent.

    Args:
        given: options of the command line so far, by name.

    Raises:
        P2PCacheError: the agent doesn't answer, or not in time.
    """
    loaded = _loaded(given)
    with time_limit(COMPLETION_TIMEOUT_S):
        client = find_agent(loaded)
        if client is None:
            return sorted(_published(cache_dir(loaded.settings) / "models"))
        found = {ref for model in client.models() for ref in model.get("refs") or [model["ref"]]}
        return sorted(ref for ref in found if not ref.startswith("@"))


def _published(models: Path) -> Iterator[str]:
    """Yield the tags that are linked in a cache; another command may hold its lock for an hour."""
    for tag in models.glob("*/*/*"):
        if tag.is_symlink():
            yield Ref(tag.parent.parent.name, tag.parent.name, tag.name).short


def _loaded(given: Mapping[str, Any]) -> Loaded:
    return load(given.get("config"), {name: given.get(name) for name in FLAGS})


def _given(ctx: click.Context) -> dict[str, Any]:
    return {name: value for name, value in ctx.params.items() if value is not None}


REF = RefType()
NODE = NodeType()
