"""The naive rival: every node reads the whole model from the origin itself, on the same links."""

import shlex
from pathlib import Path

from loadtest.kit.daemons import P2PCACHE
from loadtest.storm.arena import Arena
from loadtest.storm.contest import Racer, Score, contest
from loadtest.storm.plan import Links

REF = "storm/naive:v1"


def run_naive(arena: Arena, links: Links, _source: Path) -> Score:
    """Pull with our own client, but with no tracker and so no peers; a model of `naive_bytes`."""
    source = arena.push(arena.plan.naive_bytes, REF)
    racers = []
    for host in arena.node_hosts:
        folder = arena.work / "rivals" / "naive" / host.port
        cache = folder / "cache"
        pull = [*P2PCACHE, "pull", REF, "--quiet", "--cache-dir", str(cache)]
        script = f"echo ready && read go && {shlex.join(pull)} >&2 && echo done"
        tree = cache / "models" / "storm" / "naive" / "v1"
        racer = Racer(host, ["sh", "-c", script], folder, tree=tree, environ=arena.client_environ)
        racers.append(racer)
    return contest(arena, links, source, racers)
