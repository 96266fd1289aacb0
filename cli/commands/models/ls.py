"""`ls`: list the models in the cache."""

import fnmatch
from typing import Any

import click

from p2pcache.cli.rows.cluster_rows import cluster_option
from p2pcache.cli.rows.tables import SHORT_DIGEST, output_options, table
from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.describe import format_ago, model_state
from p2pcache.cli.support.options import Command
from p2pcache.cli.support.output import clean, emit, emit_document, note
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import format_bytes
from p2pcache.errors import NotAllowed, NotFound, P2PCacheError, UsageError
from p2pcache.ids import DEFAULT_NAMESPACE, Ref
from p2pcache.io.http.client import AgentClient

NO_TAG = "-"
MOST_LOOKED_UP = 100  # names that several models have: each costs a question to the tracker


@click.command(cls=Command)
@click.argument("patterns", type=REF, metavar="[PATTERN]...", nargs=-1)
@cluster_option
@output_options
@click.option("-q", "--quiet", is_flag=True, help="Refs alone, one a line.")
@client_options("cache_dir")
def ls(
    patterns: tuple[str, ...], cluster: bool, as_json: bool, wide: bool, quiet: bool, loaded: Loaded
) -> None:
    """List the models in the cache.

    With patterns only those whose name matches one: as in a shell, with or without a tag. STATE is
    "complete", or how much of the model is here (an interrupted pull has the name that was asked
    for; pulling it again resumes), "part": the cluster keeps that share here, or "remote": it was
    evicted, and comes back when it is pulled.
    On a narrow terminal columns go; -o wide shows all. --json gives everything, with whole digests.

    With --cluster the models of all nodes, as the tracker knows them, by the name used last. A
    version from which its tag has moved on has no TAG; its DIGEST is a name, as ever.
    COPIES is how many whole copies their parts make; of a model that is kept (`p2pcache keep`) the
    copies of the part that has the fewest, beside those that are wanted. NODES is how many nodes
    have or want some of it.

    Examples:
      p2pcache ls
      p2pcache ls --cluster
      p2pcache ls 'team/*' '*:latest'
      p2pcache ls --json | jq -r '.models[] | select(.complete) | .ref'
    """
    if cluster:
        client = need_agent(loaded)
        kept = _kept(client)
        swarms = [
            swarm
            for swarm in client.cluster_models()
            if not patterns or (swarm["label"] and _matches(swarm["label"], patterns))
        ]
        old = _old_versions(client, swarms)
        _of_all_nodes(swarms, kept, old, as_json=as_json, wide=wide)
        return
    with cache_or_agent(loaded) as cache:
        models = [m for model in cache.models() if (m := _matching(model, patterns))]
    if as_json:
        emit_document({"models": models})
        return
    if quiet:
        for name, tag in (each for model in models for each in _names(model)):
            if tag != NO_TAG:  # else no command takes its ref
                emit(clean(f"{name}:{tag}"))
        return
    rows = [
        (
            name,
            tag,
            m["digest"][:SHORT_DIGEST],
            format_bytes(m["bytes"]),
            model_state(m),
            format_ago(m["last_used"]),
        )
        for m in models
        for name, tag in _names(m)
    ]
    table(
        ("NAME", "TAG", "DIGEST", "SIZE", "STATE", "USED"),
        rows,
        right=(3,),
        drop=("USED", "DIGEST"),
        cut=("NAME", "TAG", "STATE"),
        wide=wide,
    )


def _of_all_nodes(
    swarms: list[dict[str, Any]],
    kept: dict[str, dict[str, Any]],
    old: frozenset[str],
    *,
    as_json: bool,
    wide: bool,
) -> None:
    models = [
        {
            "ref": s["label"], "digest": s["digest"], "bytes": s["bytes"], "nodes": s["members"],
            "complete": s["complete"], "wanting": s["wanting"],
            "copies": round(float(s["share"]) * int(s["members"]), 2),
            "keep": kept.get(s["digest"]), "old": s["digest"] in old,
        }
        for s in swarms
    ]  # fmt: skip
    models.sort(key=lambda m: (m["ref"], m["old"], m["digest"]))
    if as_json:
        emit_document({"models": models})
        return
    rows = []
    for m in models:
        name, _, tag = str(m["ref"] or "-:-").rpartition(":")
        phase = "arriving" if m["wanting"] else "whole" if m["complete"] else "in parts"
        rows.append((name, NO_TAG if m["old"] else tag, m["digest"][:SHORT_DIGEST], format_bytes(m["bytes"]),
                     _copies(m), m["nodes"], phase))  # fmt: skip
    heads = ("NAME", "TAG", "DIGEST", "SIZE", "COPIES", "NODES", "PHASE")
    table(heads, rows, right=(3, 4, 5), drop=("DIGEST", "NODES"), cut=("NAME", "TAG"), wide=wide)


def _old_versions(client: AgentClient, swarms: list[dict[str, Any]]) -> frozenset[str]:
    """Return the digests of models that have the name of another one: their tag has moved since they were used."""
    named: dict[str, list[str]] = {}
    for swarm in swarms:
        if swarm["label"]:
            named.setdefault(_folded(swarm["label"]), []).append(swarm["digest"])
    doubled = [pair for pair in named.items() if len(pair[1]) > 1]
    if len(doubled) > MOST_LOOKED_UP:
        note(
            f"{len(doubled) - MOST_LOOKED_UP} names of several models weren't looked up: each of these has its tag, "
            "old versions too; name fewer by patterns"
        )
    old: set[str] = set()
    for label, digests in doubled[:MOST_LOOKED_UP]:
        try:
            now = client.locate(label)["digest"]
        except P2PCacheError:  # what the name means can't be told, or not to us
            continue
        old.update(digest for digest in digests if digest != now)
    return frozenset(old)


def _kept(client: AgentClient) -> dict[str, dict[str, Any]]:
    """Return how models are kept, by digest: of several names the one that wants the most copies."""
    try:
        rows = client.keeps().get("keeps", [])
    except (UsageError, NotFound, NotAllowed):  # an agent or a tracker of the release before
        return {}
    return {row["digest"]: row for row in sorted(rows, key=lambda row: int(row.get("target", 0)))}


def _copies(model: dict[str, Any]) -> str:
    kept = model["keep"]
    return f"{kept.get('have', 0)}/{kept.get('target', 0)}" if kept else f"{model['copies']:g}"


def _matching(model: dict[str, Any], patterns: tuple[str, ...]) -> dict[str, Any]:
    """Return the model with those of its refs that match; {} if none does."""
    if not patterns:
        return model
    refs = model.get("refs")
    if not refs and not model["tags"]:
        name, _ = _names(model)[0]
        return model if _matches(name, patterns) else {}
    named = refs if isinstance(refs, list) else [f"{name}:{tag}" for name, tag in _names(model)]
    kept = [text for text in named if _matches(text, patterns)]
    if not kept:
        return {}
    tags = [text.rpartition(":")[2] for text in kept]
    return model | {"tags": tags, "ref": kept[0]} | ({"refs": kept} if refs else {})


def _matches(short: str, patterns: tuple[str, ...]) -> bool:
    short = _folded(short)
    full = short if "/" in short else f"{DEFAULT_NAMESPACE}/{short}"
    texts = {text for each in (short, full) for text in (each, each.rpartition(":")[0])}
    folded = [_folded(pattern) for pattern in patterns]
    return any(fnmatch.fnmatchcase(text, pattern) for text in texts for pattern in folded)


def _folded(pattern: str) -> str:
    """Return the pattern with its name in lower case, as refs have it; the tag stays."""
    name, colon, tag = pattern.partition(":")
    return f"{name.lower()}{colon}{tag}"


def _names(model: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (name, tag) of each ref of the model, the name as it was pushed; its tag is "-" if it has none."""
    refs, written = [Ref.parse(ref) for ref in model.get("refs", ())], model.get("spellings", {})
    if refs:
        return [(written.get(ref.full_name, ref.full_name), ref.tag) for ref in refs]
    space, name = model["namespace"], model["name"]
    full = name if space in ("", DEFAULT_NAMESPACE) else f"{space}/{name}"
    full = written.get(full, full) or "-"
    return [(full, tag) for tag in model["tags"] or [NO_TAG]]
