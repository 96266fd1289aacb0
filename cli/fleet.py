"""`nodes`, `status`, `version`: the cluster and this node's place in it."""

from typing import Any

import click

from p2pcache import __version__
from p2pcache.cli.connect import Loaded, client_options, need_agent
from p2pcache.cli.options import Command, json_option
from p2pcache.cli.output import clean, emit, emit_document, table
from p2pcache.core.units import format_bytes, format_duration
from p2pcache.ids import Ref


@click.command(cls=Command)
@json_option
@client_options()
def nodes(as_json: bool, loaded: Loaded) -> None:
    """List the cluster's nodes.

    As the tracker knows them; a node that is gone for 15 s is dropped.

    Examples:
      p2pcache nodes
      p2pcache nodes --json | jq '.nodes | length'
    """
    known = need_agent(loaded).nodes()
    if as_json:
        emit_document({"nodes": known})
        return
    rows = [
        (
            n.get("node", "-"), n.get("name") or "-", n.get("address", "-"), n.get("rack") or "-",
            n.get("site") or "-", n.get("version", "-"), n.get("models", "-"), format_bytes(n.get("cached_bytes", 0)),
            format_bytes(n.get("free_bytes", 0)), n.get("load", "-"),
            f"{format_duration(n.get('last_seen_s', 0))} ago",
        )
        for n in known
    ]  # fmt: skip
    heads = (
        "NODE",
        "NAME",
        "ADDRESS",
        "RACK",
        "SITE",
        "VERSION",
        "MODELS",
        "CACHED",
        "FREE",
        "LOAD",
        "SEEN",
    )
    table(heads, rows, right=(6, 7, 8, 9))


@click.command(cls=Command)
@click.argument("ref")
@json_option
@client_options()
def locate(ref: str, as_json: bool, loaded: Loaded) -> None:
    """List the nodes that have a model.

    As the tracker knows them, the most complete first. --json adds the digest and the label that
    a Kubernetes Node carries for the model: what a scheduler needs to send pods where the bytes are.

    Examples:
      p2pcache locate team/llama:v3
      p2pcache locate team/llama:v3 --json | jq -r '.nodes[] | select(.complete) | .name'
    """
    found = need_agent(loaded).locate(str(Ref.parse(ref)))
    if as_json:
        emit_document(found)
        return
    rows = [
        (
            n.get("node", "-"), n.get("name") or "-", n.get("address", "-"), n.get("rack") or "-",
            n.get("site") or "-", f"{float(n.get('share', 0)):.0%}",
        )
        for n in found.get("nodes", ())
    ]  # fmt: skip
    table(("NODE", "NAME", "ADDRESS", "RACK", "SITE", "HAS"), rows, right=(5,))


@click.command(cls=Command)
@json_option
@client_options()
def status(as_json: bool, loaded: Loaded) -> None:
    """Show the agent, its tracker, origin and cache.

    Says first whether the agent is ready, and if not, why not.

    Examples:
      p2pcache status
      p2pcache status --json | jq .cache
    """
    client = need_agent(loaded)
    state = client.status()
    if as_json:
        emit_document(state)
        return
    ready = "ready" if state.get("ready") else "not ready"
    _line("agent", f"{ready}, version {state.get('version', '?')}, at {client.address}")
    for reason in state.get("reasons", ()):
        _line("", reason)
    _line("node", f"{state.get('node', '?')} at {state.get('address') or '-'}")
    tracker = _part(state, "tracker")
    _line("tracker", f"{tracker['url']} ({'connected' if tracker.get('connected') else 'not connected'})"
          if tracker.get("url") else "none: this agent works alone")  # fmt: skip
    _line("origin", _part(state, "origin").get("url") or "none")
    cache = _part(state, "cache")
    _line("cache", f"{cache.get('dir', '?')}: {format_bytes(cache.get('cached_bytes', 0))} in "
          f"{state.get('models', 0)} models, {format_bytes(cache.get('free_bytes', 0))} free")  # fmt: skip
    _line("pulls", f"{len(state.get('pulls', ()))} running")


@click.command(cls=Command)
@json_option
def version(as_json: bool) -> None:
    """Print the version of this program.

    Examples:
      p2pcache version
    """
    if as_json:
        emit_document({"version": __version__})
    else:
        emit(f"p2pcache {__version__}")


def _part(state: dict[str, Any], key: str) -> dict[str, Any]:
    value = state.get(key)
    return value if isinstance(value, dict) else {}


def _line(label: str, value: object) -> None:
    emit(f"{label + ':' if label else '':10}{clean(value)}")
