"""The torrent door: BitTorrent clients get models from an agent, from its web seed or as its peers."""

import asyncio
import contextlib
import os
import shutil
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.doors import torrent_seeds
from p2pcache.agent.settings import AgentSettings
from p2pcache.errors import UsageError
from p2pcache.io.torrents.fetching import FILES, Fetching, Ways
from p2pcache.io.torrents.making import MAX_PIECE_BYTES
from p2pcache.io.torrents.metainfo import Metainfo, read_metainfo
from tests.agent.kit import agent, make_model, pull, push
from tests.io.torrents.kit import lt

WEIGHTS = os.urandom(1_500_000)
FILES_OF_MODEL = {
    "config.json": b"{}", "model.bin": WEIGHTS, "sub/\u00fc b.txt": b"one\ntwo\n", "empty": b"",
}  # fmt: skip
OPEN = {"torrent_http_listen": "127.0.0.1:0", "torrent_namespaces": "acme"}
SEEDS = {**OPEN, "torrent_listen": "127.0.0.1:0", "torrent_v1": True}


@contextlib.asynccontextmanager
async def door(tmp: Path, **settings: Any) -> AsyncIterator[tuple[AgentApp, aiohttp.ClientSession]]:
    async with agent(tmp, origin=(tmp / "origin").as_uri(), **settings) as app:
        base = f"http://{app.listeners.door_addresses['torrent_http_listen']}"
        async with aiohttp.ClientSession(base) as session:
            yield app, session


def stored(tmp: Path) -> str:
    """Two models in storage, in an open namespace and in another; the digest of the first."""
    layout = push(tmp / "origin", make_model(tmp / "m", FILES_OF_MODEL), "acme/tiny:v1")
    push(tmp / "origin", make_model(tmp / "n", {"secret": b"x"}), "other/secret:v1")
    return layout.digest


async def got(session: aiohttp.ClientSession, path: str, **headers: str) -> tuple[int, bytes]:
    async with session.get(path, headers=headers) as answer:
        return answer.status, await answer.read()


async def torrent_of(session: aiohttp.ClientSession, path: str) -> bytes:
    async with asyncio.timeout(20):
        while (answer := await got(session, path))[0] != 200:
            assert answer[0] == 503  # it is being made
            await asyncio.sleep(0.05)
    return answer[1]


def fetched(torrent: Metainfo, folder: Path) -> dict[str, bytes]:
    with Fetching(Ways(local=True)) as fetching:
        for _ in fetching.steps_of(torrent, folder):
            pass
    return {
        file.path: (folder / FILES / torrent.name / file.path).read_bytes()
        for file in torrent.files
    }


async def aria2(folder: Path, torrent: dict[bytes, Any]) -> dict[str, bytes]:
    """What an unmodified client gets."""
    folder.mkdir()
    (folder / "x.torrent").write_bytes(lt.bencode(torrent))
    quiet = ["--no-conf", "-q", "--seed-time=0", "--enable-dht=false", "--bt-enable-lpd=false"]
    client = await asyncio.create_subprocess_exec(
        "aria2c", *quiet, f"--dir={folder}", str(folder / "x.torrent")
    )
    async with asyncio.timeout(20):
        assert await client.wait() == 0
    (root,) = folder.glob("@*")
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {path: at.read_bytes() for path, at in found.items() if not path.startswith(".pad/")}


async def test_a_web_seed_shows_what_is_complete_and_chosen(tmp_path: Path) -> None:
    digest = stored(tmp_path)
    async with door(tmp_path, **OPEN) as (app, session):
        weights = f"/acme/tiny/@{digest}/model.bin"
        assert (await got(session, weights))[0] == 404  # and nobody's question fetches it
        assert not app.store.models()
        for ref in ("acme/tiny:v1", "other/secret:v1"):
            assert (await pull(app, ref))["event"] == "done"
        assert await got(session, weights) == (200, WEIGHTS)
        whole = f"bytes=0-{len(WEIGHTS) - 1}"  # Transmission wants 206 for it
        assert await got(session, weights, Range=whole) == (206, WEIGHTS)
        assert await got(session, weights, Range="bytes=5-9") == (206, WEIGHTS[5:10])
        assert await got(session, f"/acme/tiny/%40{digest}/sub/%C3%BC%20b.txt") == (
            200,
            b"one\ntwo\n",
        )
        assert await got(session, f"/acme/tiny/@{digest}/.pad/77") == (200, bytes(77))
        assert await got(session, f"/acme/tiny/@{digest}/.pad/77", Range="bytes=70-") == (
            206,
            bytes(7),
        )
        (secret,) = [model.digest for model in app.store.models() if model.digest != digest]
        refused = {
            f"/other/secret/@{secret}/secret": 403,  # not chosen
            f"/acme/tiny/@{secret}/secret": 404,  # by the name of another
            f"/acme/tiny/@{digest}/no": 404,
            f"/acme/tiny/@{digest}/.pad/99999999": 404,  # more than any piece
            f"/acme/tiny/@{digest}/.pad/0": 404,
            "/acme/tiny/v1/model.bin": 404,
            "/acme/tiny/v1.torrent": 404,  # nothing is seeded
            f"/acme/tiny/@{digest[:40]}/model.bin": 404,
        }
        assert {path: (await got(session, path))[0] for path in refused} == refused
        async with session.put(weights, data=b"x") as answer:
            assert answer.status == 405


async def test_who_asks_and_doesnt_read_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = stored(tmp_path)
    async with door(tmp_path, **OPEN) as (app, session):
        assert (await pull(app, "acme/tiny:v1"))["event"] == "done"
        head = f"GET /acme/tiny/@{digest}/.pad/{MAX_PIECE_BYTES - 1} HTTP/1.1\r\nHost: x\r\n\r\n"
        host, _, port = app.listeners.door_addresses["torrent_http_listen"].rpartition(":")
        tracemalloc.start()
        try:
            readers = [await asyncio.open_connection(host, int(port), limit=1) for _ in range(20)]
            for reader, writer in readers:
                writer.write(head.encode())
                assert await reader.read(1) == b"H"
            await asyncio.sleep(0.2)
            assert tracemalloc.get_traced_memory()[1] < MAX_PIECE_BYTES
        finally:
            tracemalloc.stop()
        for _, writer in readers:
            writer.close()
        assert await got(session, f"/acme/tiny/@{digest}/.pad/{MAX_PIECE_BYTES - 1}") == (
            200, bytes(MAX_PIECE_BYTES - 1),
        )  # fmt: skip


async def test_a_client_gets_a_model_from_the_seeding_agent_and_from_the_web_seed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOOK_S", "AGAIN_S"):
        monkeypatch.setattr(torrent_seeds, name, 0.1)
    digest = stored(tmp_path)
    async with door(tmp_path, **SEEDS) as (app, session):
        await pull(app, "acme/tiny:v1")
        data = await torrent_of(session, "/acme/tiny/v1.torrent")
        assert await torrent_of(session, f"/acme/tiny/@{digest}.torrent") == data
        async with asyncio.timeout(20):
            while len(app.seeds.info_hashes) < 3:
                await asyncio.sleep(0.05)
        old = read_metainfo(await torrent_of(session, "/acme/tiny/v1.torrent?v1"))
        assert len(old.info_hash) == 40
        assert await asyncio.to_thread(fetched, old, tmp_path / "c") == FILES_OF_MODEL
        plain = lt.bdecode(data)
        announced = {**plain}
        del announced[b"url-list"]
        seeded = read_metainfo(lt.bencode(announced))  # no web seed: by the announce alone
        assert await asyncio.to_thread(fetched, seeded, tmp_path / "a") == FILES_OF_MODEL
        del plain[b"announce"]
        if shutil.which("aria2c"):
            assert await aria2(tmp_path / "d", plain) == FILES_OF_MODEL
        alone = read_metainfo(lt.bencode(plain))
        assert await asyncio.to_thread(fetched, alone, tmp_path / "b") == FILES_OF_MODEL
        stranger = await got(session, f"/announce?info_hash={'%00' * 20}")
        assert b"failure reason" in lt.bdecode(stranger[1])

        # A second life of the process seeds the same, and a removed model is seeded no more.
        assert app.seeds._process is not None
        app.seeds._process.kill()
        async with asyncio.timeout(30):
            while app.seeds.info_hashes:
                await asyncio.sleep(0.05)
            while not app.seeds.info_hashes:
                await asyncio.sleep(0.05)
            await asyncio.to_thread(app.store.remove_model, digest)
            while app.seeds.info_hashes or list((tmp_path / "a/torrents").glob("*")):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("setting", ["torrent_listen", "torrent_http_listen"])
def test_the_operator_says_what_everybody_may_read(tmp_path: Path, setting: str) -> None:
    with pytest.raises(UsageError, match="torrent_namespaces"):
        AgentApp(
            msgspec.convert(
                {"cache_dir": str(tmp_path / "c"), setting: "127.0.0.1:0"}, AgentSettings
            )
        )
