"""`nodes`, `status`, `version`: the cluster and this node's place in it."""

import time
from typing import Any

import click

from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document, table
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import counted, format_bytes, format_duration
from p2pcache.ids import Ref


@click.command(cls=Command)
@json_option
@client_options()
def nodes(as_json: bool, loaded: Loaded) -> None:
    """List the cluster's nodes.

    As the tracker knows them; a node that is silent for 10 s is dropped.

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
            n.get("site") or "-", n.get("version", "-"), n.get("models", "-"), _told(n, "cached_bytes"),
            _told(n, "free_bytes"), n.get("load", "-"),
            f"{format_duration(n.get('last_seen_s', 0))} ago"
            + (", nobody reaches it" if n.get("unreached") else ""),
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


def _told(node: dict[str, Any], key: str) -> str:
    """A size that heartbeats tell; before the first one both are 0, and no disk is both."""
    known = node.get("cached_bytes") or node.get("free_bytes")
    return format_bytes(node.get(key, 0)) if known else "-"


@click.command(cls=Command)
@click.argument("ref", type=REF)
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
    for label, text in headlines(state, client.address):
        emit(f"{label:10}{text}")
    pulls = state.get("pulls", ())
    emit(f"{'pulls:':10}{len(pulls)} running{'; see p2pcache ps' if pulls else ''}")


@click.command(cls=Command)
@json_option
def version(as_json: bool) -> None:
    """Print the version of this program.

    With the commit that it was built from, the Python that runs it, and the formats that it speaks.

    Examples:
      p2pcache version
      p2pcache version --json | jq -r .commit
    """
    from p2pcache.io.release import this_release  # no other command here asks for it

    release = this_release()
    if as_json:
        emit_document(release._asdict())
        return
    emit(f"p2pcache {release.version}")
    for name in ("commit", "python", "uvloop", "blake3"):
        emit(f"{name + ':':10}{getattr(release, name)}")
    spoken = (f"{name} {_listed(value)}" for name, value in release.formats.items())
    emit(f"{'formats:':10}{', '.join(spoken)}")


def _listed(value: object) -> str:
    """A format's version, or the versions of it that are spoken."""
    return " and ".join(str(v) for v in value) if isinstance(value, list) else str(value)


def headlines(state: dict[str, Any], address: str) -> list[tuple[str, str]]:
    """What a status says, as (label, text) lines that are safe for a terminal."""
    tracker, origin, cache = (_part(state, key) for key in ("tracker", "origin", "cache"))
    ready = "ready" if state.get("ready") else "not ready"
    if state.get("ready") and origin.get("refused"):
        ready = "refused by storage, peers alone can bring models"
    up = f", up {format_duration(state['uptime_s'])}" if "uptime_s" in state else ""
    place = " / ".join(str(state[key]) for key in ("site", "rack") if state.get(key))
    node = f"{state.get('node', '?')} at {state.get('address') or '-'}"
    lines = [
        ("agent:", f"{ready}, version {state.get('version', '?')}{up}, at {address}"),
        *(("", str(reason)) for reason in state.get("reasons", ())),
        *(("warning:", str(warning)) for warning in state.get("warnings", ())),
        ("node:", " ".join(filter(None, (state.get("name"), node, place and f"({place})")))),
        ("tracker:", _tracker(tracker)),
        ("origin:", origin.get("url") or "none"),
        ("cache:", _cache(cache, state.get("models", 0))),
        ("traffic:", traffic(_part(state, "bytes"))),
        *(("governor:", text) for text in governor(_part(state, "governor"))),
    ]  # fmt: skip
    return [(label, clean(text)) for label, text in lines]


def traffic(moved: dict[str, Any]) -> str:
    """Bytes since the agent's start, in words."""
    peers, origin = int(moved.get("peer", 0)), int(moved.get("origin", 0))
    share = f" ({peers / (peers + origin):.0%})" if peers + origin else ""
    return (
        f"{format_bytes(peers)} from peers{share}, {format_bytes(origin)} from storage, "
        f"{format_bytes(int(moved.get('served', 0)))} served"
    )


def governor(state: dict[str, Any]) -> list[str]:
    """What holds a node back, in a line; none at full speed where nobody asked for a governor."""
    share = float(state.get("share", 1.0))
    if share < 1:
        cause = f": {state['cause']}" if state.get("cause") else ", and growing"
        up, disk = (format_bytes(state.get(f"{way}_bytes_per_s", 0)) for way in ("upload", "disk"))
        rates = f"{up}/s up, {disk}/s to disk, {state.get('upload_slots', '?')} uploads"
        return [f"{share:.0%} of full speed is left for us{cause}; {rates}"]
    return [f"can't see: {text}" for text in state.get("blind", ())]


def _cache(state: dict[str, Any], models: object) -> str:
    cached, free = (format_bytes(state.get(key, 0)) for key in ("cached_bytes", "free_bytes"))
    return f"{state.get('dir', '?')}: {cached} in {counted(models, 'model')}, {free} free"


def _tracker(state: dict[str, Any]) -> str:
    if not state.get("url"):
        return "none: this agent works alone"
    beat = float(state.get("last_heartbeat") or 0)
    heard = f", heartbeat {format_duration(max(0.0, time.time() - beat))} ago" if beat else ""
    if state.get("connected"):
        return f"{state['url']} (connected{heard})"
    since = float(state.get("changed_at") or 0)
    lost = f" for {format_duration(max(0.0, time.time() - since))}" if since else ""
    return f"{state['url']} (not connected{lost}{heard})"


def _part(state: dict[str, Any], key: str) -> dict[str, Any]:
    value = state.get(key)
    return value if isinstance(value, dict) else {}
