"""Models of other clusters' sites: real agents on loopback, real torrents, no shared storage."""

import asyncio
import contextlib
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.doors import torrent_seeds
from p2pcache.agent.far_sites import crossing
from p2pcache.agent.far_sites.far_sites import parse_sites
from p2pcache.errors import UsageError
from p2pcache.io.torrents import receiving
from p2pcache.io.torrents.making import make_torrent
from tests.agent.kit import agent, make_model, pull, push
from tests.io.torrents.kit import published
from tests.io.torrents.test_finding import door
from tests.tracker.kit import tracker

FILES = {
    "config.json": b"{}", "model.bin": os.urandom(1_500_000), "sub/a b.txt": b"one\ntwo\n", "empty": b"",
}  # fmt: skip


@contextlib.asynccontextmanager
async def seeding(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, str]]:
    """A site that seeds a model; its door, and the model's digest."""
    for name in ("LOOK_S", "AGAIN_S"):
        monkeypatch.setattr(torrent_seeds, name, 0.1)
    layout = push(tmp / "origin-a", make_model(tmp / "m", FILES), "acme/tiny:v1")
    settings = {
        "origin": (tmp / "origin-a").as_uri(), "torrent_listen": "127.0.0.1:0",
        "torrent_http_listen": "127.0.0.1:0", "torrent_namespaces": "acme",
    }  # fmt: skip
    async with agent(tmp, "a", **settings) as app:
        assert (await pull(app, "acme/tiny:v1"))["event"] == "done"
        yield app.listeners.door_addresses["torrent_http_listen"], layout.digest


def files_of(app: AgentApp, path: object) -> dict[str, bytes]:
    root = app.store.root / "models" / str(path)
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


async def test_two_nodes_of_a_site_get_a_model_that_crosses_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a tag of their own storage, which has nothing else of it, and by its digest."""
    push(tmp_path / "origin-b", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    for folder in ("blobs", "manifests"):
        shutil.rmtree(tmp_path / "origin-b/p2pcache/v1" / folder)
    origin = (tmp_path / "origin-b").as_uri()
    begun: list[str] = []

    def counted(folder: Path, peer: str, rate: int) -> list[str]:
        begun.append(peer)
        return receiving.command(folder, peer, rate)

    monkeypatch.setattr(crossing, "command", counted)
    async with seeding(tmp_path, monkeypatch) as (site, digest), tracker(origin) as hub:
        common = {
            "tracker": f"http://{hub.address}", "torrent_sites": f"acme={site}",
        }  # fmt: skip
        async with agent(tmp_path, "b", **common) as one, agent(tmp_path, "c", **common) as two:
            async with asyncio.timeout(30):
                said = await asyncio.gather(
                    pull(one, "acme/tiny:v1"), pull(two, f"acme/tiny@blake3:{digest}")
                )
            for app, done in zip((one, two), said, strict=True):
                assert done["event"] == "done", done
                waited = done["report"]["waited"]
                assert "site" in waited
                assert waited.keys() <= {"site", "peers", "busy"}
                found = files_of(app, done["path"])
                assert {name: found.get(name) for name in FILES} == FILES
            assert len(begun) == 1
            assert not list((tmp_path / "b/far-sites").glob("*"))


async def test_a_site_that_seeds_other_bytes_ends_the_pull(tmp_path: Path) -> None:
    """Its torrent has the right manifest, names and sizes, and hashes of what it seeds."""
    (tmp_path / "liar").mkdir()
    (tmp_path / "origin").mkdir()
    digest, manifest = published(tmp_path / "liar", FILES)
    (tmp_path / "liar" / f"@{digest}" / "model.bin").write_bytes(bytes(1_500_000))
    torrent = make_torrent(tmp_path / "liar", manifest)
    (tmp_path / "torrent").write_bytes(torrent)
    order = {"seed": "x", "torrent": str(tmp_path / "torrent"), "folder": str(tmp_path / "liar")}
    program = [sys.executable, "-m", "p2pcache.io.torrents.seeding", "127.0.0.1:0", "0"]
    process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = json.loads(await process.stdout.readline())["port"]
        process.stdin.write(json.dumps(order).encode() + b"\n")
        await process.stdout.readline()
        announce = b"d5:peers6:" + bytes(4) + port.to_bytes(2, "big") + b"e"
        with door(*[(200, torrent), (200, announce)] * 2) as site:
            settings = {"origin": (tmp_path / "origin").as_uri(), "torrent_sites": f"acme={site}"}
            async with agent(tmp_path, "b", **settings) as app, asyncio.timeout(30):
                done = await pull(app, f"acme/tiny@blake3:{digest}")
                assert (done["event"], done["code"]) == ("error", 6), done
                assert "seeds other bytes" in done["message"]
                (model,) = app.store.models()
                assert not model.complete
    finally:
        process.kill()
        await process.wait()


async def test_a_model_that_no_site_has_comes_from_storage(tmp_path: Path) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    settings = {"origin": (tmp_path / "origin").as_uri(), "torrent_sites": "*=127.0.0.1:9"}
    async with agent(tmp_path, **settings) as app:
        done = await pull(app, "acme/tiny:v1")
        assert done["event"] == "done"
        assert done["bytes_origin"] > 0


def test_the_setting() -> None:
    assert parse_sites("a=h:1, a=[::1]:2,*=x.example:3") == {
        "a": ("h:1", "[::1]:2"), "*": ("x.example:3",),
    }  # fmt: skip
    for wrong in ("h:1", "a=h", "a=h:0", "A b=h:1", "=h:1"):
        with pytest.raises(UsageError, match=r"torrent_sites|namespace"):
            parse_sites(wrong)
