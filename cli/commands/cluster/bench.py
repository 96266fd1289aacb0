"""`bench`: measure disk, hash, loopback and storage of this node."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.support.options import DIR, Command, config_option, json_option
from p2pcache.cli.support.output import clean, emit, emit_document, note
from p2pcache.cli.support.setting_options import read_settings
from p2pcache.core.units import format_bytes
from p2pcache.errors import P2PCacheError
from p2pcache.io.config import redacted


@click.command(cls=Command)
@json_option
@click.option(
    "--origin", metavar="URL", help="Instead of the settings' origin; none: it isn't read."
)
@click.option(
    "--cache-dir", metavar="DIR", type=DIR, help="Instead of the settings' cache directory."
)
@config_option
def bench(as_json: bool, config: str | None, **flags: str | None) -> int:
    """Measure this node: disk, hash, loopback, storage.

    Each part by itself, about ten seconds in all: what a pull could reach at best here. The slowest
    of them is what to look at first. Writes 128 MiB to the cache's disk, in a file that is gone at
    once, and reads blobs of the storage. Needs no agent; one that works meanwhile makes the figures
    smaller. The exit code is that of the first part that can't be measured.

    Examples:
      p2pcache bench
      p2pcache bench --origin s3://models --json | jq .origin
    """
    settings = read_settings(AgentSettings, "agent", config, flags)
    figures, code = measure(
        Path(settings.cache_dir).absolute(), settings.origin, note=_note(as_json)
    )
    if as_json:
        emit_document(figures)
    else:
        for line in lines(figures):
            emit(line)
    return code


def measure(
    cache: Path, origin: str, note: Callable[[str], None]
) -> tuple[dict[str, dict[str, Any]], int]:
    """Measure each part in turn, so that none slows the next.

    Args:
        cache: its disk is measured.
        origin: URL of the storage; "": none is measured.
        note: told what is measured next.

    Returns:
        For each part its figures (rates in bytes per second), or `{"error": why}`; and the exit code.
    """
    from p2pcache.io.host import bench as parts
    from p2pcache.io.host import host_facts

    def disk() -> dict[str, Any]:
        nearest = host_facts.folder(cache).nearest  # the cache may not exist yet
        write, read = host_facts.disk_speed(nearest)
        return {"write": round(write), "read": round(read), "dir": str(nearest)}

    def hashing() -> dict[str, Any]:
        one, all_cores = parts.hash_speed()
        return {"one_thread": round(one), "all_cores": round(all_cores), "cores": os.cpu_count()}

    def storage() -> dict[str, Any]:
        speed = parts.origin_speed(origin)
        return {
            "url": redacted(origin), "first_byte_s": round(speed.first_byte_s, 4),
            "one_connection": round(speed.one), "connections": parts.READERS, "many": round(speed.many),
        }  # fmt: skip

    work: dict[str, Callable[[], dict[str, Any]]] = {
        "disk": disk, "hash": hashing, "loopback": lambda: {"tcp": round(parts.loopback_speed())},
    }  # fmt: skip
    if origin:
        work["origin"] = storage
    figures: dict[str, dict[str, Any]] = {}
    code = 0
    for name, part in work.items():
        note(f"measuring: {name}")
        try:
            figures[name] = part()
        except P2PCacheError as error:
            figures[name] = {"error": str(error)}
            code = code or error.exit_code
    return figures, code


def lines(figures: dict[str, dict[str, Any]]) -> list[str]:
    """Return a table for people, from the figures of `measure`."""
    found = []
    for name, part in figures.items():
        if "error" in part:
            found.append(f"{name:9}{clean(part['error'])}")
            continue
        found.append(f"{name:9}{clean(_describe(name, part))}")
    return found


def _describe(name: str, part: dict[str, Any]) -> str:
    """Say the figures of one part in a line."""
    if name == "disk":
        written, read = _rate(part["write"]), _rate(part["read"])
        return f"{written} written until durable, {read} read, in {part['dir']}"
    if name == "hash":
        one, cores = _rate(part["one_thread"]), _rate(part["all_cores"])
        return f"{one} BLAKE3 on one thread, {cores} on {part['cores']}"
    if name == "loopback":
        return f"{_rate(part['tcp'])} by sendfile over one TCP connection"
    return (
        f"{_rate(part['one_connection'])} over one connection, {_rate(part['many'])} over "
        f"{part['connections']}, first byte after {part['first_byte_s'] * 1000:.0f} ms, from {part['url']}"
    )


def _rate(value: float) -> str:
    return f"{format_bytes(value)}/s"


def _note(as_json: bool) -> Callable[[str], None]:
    return (lambda _: None) if as_json else note
