"""Each document and event of `--json` has the keys that docs/cli.md lists, and the vocabulary that it promises."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.kit.cluster import Cluster
from loadtest.kit.daemons import wait_until
from loadtest.kit.models import make_model
from tests.functional.node import Pull, bytes_done, push

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
FREE = {
    "settings",
    "formats",
    "label",
    "phases",
    "waited",
    "strain",
    "counters",
    "spellings",
}  # their keys are data
# What a run of a minute doesn't bring about: storage in trouble, a pull stuck or among peers, a refusal.
REPAIR = {"began_at", "ended_at"}  # nothing was missing yet
RARE = {
    "nodes": {"gone_s", "lost"}, "keep": {"node", "name", "why", "detail", *REPAIR}, "keep --list": REPAIR,
    "ls --cluster": REPAIR,
    "explain": {
        "address", "useful", "asked", "load", "rests_s", "delivers", "story", "node", "eta_node", "trouble",
    },
    "warm --replicas": {"code", "message", "complete"}, "resolved": {"trouble"}, "progress": {"trouble"},
    "waiting": {"trouble"}, "done of pull": {"node", "eta_node"},
}  # fmt: skip


def listed() -> dict[str, set[str]]:
    """The keys of each shape, by its name in the table below the heading "Shapes"."""
    table = PAGE.split("\n### Shapes\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^|]+)` \| (.+) \|$", table, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", keys)) for name, keys in rows}


def keys_of(value: object) -> Iterator[tuple[str, object]]:
    """Every key with its value, at any depth; not of objects whose keys are data."""
    if isinstance(value, dict):
        for key, found in value.items():
            yield key, found
            if key not in FREE:
                yield from keys_of(found)
    elif isinstance(value, list):
        for each in value:
            yield from keys_of(each)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The objects that a cluster's commands printed, by shape."""
    folder = tmp_path_factory.mktemp("shapes")
    (folder / "origin").mkdir()
    model = make_model(folder / "model", 12 << 20, shards=2, seed=4)
    small = make_model(folder / "small", 1 << 20, shards=1, seed=5)
    other = make_model(folder / "other", 12 << 20, shards=1, seed=6)
    found: dict[str, list[dict[str, Any]]] = {}
    flags = ("--origin-bytes-per-s", "2MiB")
    with Cluster(f"file://{folder}/origin", agents=2, agent_flags=flags) as cluster:

        def ask(*words: str, code: int = 0, agent: int | None = 0, shape: str = "") -> None:
            text = cluster.run(*words, "--json", code=code, agent=agent).stdout
            if text.startswith("{\n"):
                found.setdefault(shape or words[0], []).append(json.loads(text))
                return
            for event in map(json.loads, text.splitlines()):
                kind = str(event["event"])
                name = f"done of {words[0]}" if kind == "done" else kind
                found.setdefault(name, []).append(event)

        push(cluster, model)
        pull = Pull(cluster.agents[0], "m:v1")
        wait_until(lambda: bytes_done(cluster.agents[0]) > 1 << 20, 60)
        ask("ps")
        ask("explain", "m:v1")
        ask("ps", "--cluster", shape="ps --cluster")
        ask("stats", "--interval", "0.3s")
        waiting = threading.Thread(target=ask, args=("pull", "m:v1"))
        waiting.start()
        waiting.join(60)
        pull.wait()
        ask("pull", "m:v1", "--include", "*.json")
        push(cluster, other, "other:v1")
        ask("warm", "other:v1", agent=1)
        ask("cancel", "other:v1", agent=1)
        ask("warm", "m:v1", "--replicas", "2", shape="warm --replicas")
        ask("explain", "m:v1")
        ask("push", str(small), "small:v1", "--sha256")
        ask("show", "small:v1")
        for words in (
            ("ls",), ("show", "m:v1"), ("verify", "m:v1"), ("locate", "m:v1"), ("nodes",), ("status",),
            ("history",), ("version",), ("prune", "--dry-run"), ("rm", "small:v1"),
        ):  # fmt: skip
            ask(*words)
        ask("history", "--cluster", shape="history --cluster")
        ask("df", "--cluster", shape="df --cluster")
        ask("keep", "m:v1", "--copies", "1")
        ask("ls", "--cluster", shape="ls --cluster")
        node = str(found["nodes"][0]["nodes"][0]["node"])
        ask("nodes", "drain", node, shape="nodes drain")
        ask("keep", "--list", shape="keep --list")
        ask("keep", "m:v1", "--off", shape="keep --off")
        ask("pull", "m:v1", "--hold", "job")
        ask("df")
        ask("pin", "m:v1", "--name", "prod")
        ask("pins")
        ask("unpin", "m:v1")
        ask("release", "job")
        ask("evict", "m:v1", "--dry-run")
        ask("pull", "none:v1", code=3)
        ask("doctor")
        ask("bench", "--cache-dir", str(folder / "bench"), "--origin", cluster.origin, agent=None)
    return found


def test_what_is_printed_is_documented(told: dict[str, list[dict[str, Any]]]) -> None:
    shapes = listed()
    assert told.keys() <= shapes.keys()
    strange = {
        name: sorted({key for key, _ in keys_of(objects)} - shapes[name] - {"schema", "event"})
        for name, objects in told.items()
    }
    assert {name: keys for name, keys in strange.items() if keys} == {}


def test_what_is_documented_is_printed(told: dict[str, list[dict[str, Any]]]) -> None:
    shapes = listed()
    missing = {
        name: sorted(shapes[name] - {key for key, _ in keys_of(objects)} - RARE.get(name, set()))
        for name, objects in told.items()
    }
    assert {name: keys for name, keys in missing.items() if keys} == {}


def test_the_vocabulary_holds_everywhere(told: dict[str, list[dict[str, Any]]]) -> None:
    for objects in told.values():
        for document in objects:
            assert document["schema"] == 1
        for key, value in keys_of(objects):
            if key.startswith("bytes") or key.endswith("bytes_per_s"):
                assert value is None or isinstance(value, int | float | dict), key
            if key.endswith("_at"):
                shape = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
                assert value is None or re.fullmatch(shape, str(value)), key
            if key == "digest" and value:
                assert re.fullmatch(r"blake3:[0-9a-f]{64}", str(value))
            assert key not in ("rate", "size", "ended", "started", "last_used", "cached_bytes")
