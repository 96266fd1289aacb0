"""A running agent in this process, and a client that speaks to its sockets."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from p2pcache.agent.app import AgentApp
from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.main import cli
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import encode
from p2pcache.core.swarm.events import Outcome
from p2pcache.ids import Ref, spelled
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.fetch import fetch_runs
from p2pcache.io.origins.repo import OriginRepo


@contextlib.asynccontextmanager
async def agent(tmp: Path, name: str = "a", **settings: Any) -> AsyncIterator[AgentApp]:
    defaults: dict[str, Any] = {
        "listen": "127.0.0.1:0", "cache_dir": str(tmp / name), "socket": str(tmp / f"{name}.sock"),
        "min_free_bytes": 0, "shutdown_s": 2.0,
    }  # fmt: skip
    limits, sources = settings.pop("limits", None), settings.pop("sources", None)
    app = AgentApp(AgentSettings(**{**defaults, **settings}), limits, sources)
    async with app.running():
        yield app


@contextlib.asynccontextmanager
async def client(app: AgentApp, *, path: str = "") -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(path or app.settings.socket)
    async with aiohttp.ClientSession("http://agent", connector=connector) as session:
        yield session


class HeldReads:
    """Reads of the origin that begin, and wait until they are let go: "not yet" without a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go = threading.Event()
        self.begun: list[int] = []  # runs
        self.lost = False  # let go, they bring nothing
        self.cancelled: list[int] = []  # runs that weren't wanted any more when they were let go

        def held(
            repo: OriginRepo, layout: Layout, store: Any, runs: list[int], **more: Any
        ) -> None:
            self.begun += runs
            self.let_go.wait(60)
            self.cancelled += filter(more["cancelled"], runs)
            if self.lost:
                for run in runs:
                    more["on_ended"](run, Outcome.CANCELLED)
            else:
                fetch_runs(repo, layout, store, runs, **more)

        monkeypatch.setattr("p2pcache.agent.origin_reads.fetch_runs", held)

    async def until_begun(self) -> None:
        """Until a read waits."""
        while not self.begun:
            await asyncio.sleep(0.01)


async def events(answer: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await answer.text()).splitlines()]


async def pull(app: AgentApp, ref: str, **body: Any) -> dict[str, Any]:
    """The last event of a pull (an error's body when it never began)."""
    async with (
        client(app) as session,
        session.post("/v1/pull", json={"ref": ref, **body}) as answer,
    ):
        return (await events(answer))[-1]


async def explain(app: AgentApp, ref: str = "team/m:v1") -> tuple[int, Any]:
    """Status and JSON of `GET /v1/explain`."""
    async with client(app) as session, session.get(f"/v1/explain?ref={ref}") as answer:
        return answer.status, await answer.json()


async def said(app: AgentApp, *words: str) -> str:
    """What `p2pcache explain` prints; it blocks, so it runs on a thread."""
    address = f"unix://{app.settings.socket}"
    args = ["explain", "team/m:v1", "--agent", address, *words]
    result = await asyncio.to_thread(CliRunner().invoke, cli, args)
    assert result.exit_code == 0, result.output
    return result.output


def make_model(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return folder


def push(origin: Path, model: Path, ref: str, *, sha256: bool = False) -> Layout:
    """Push straight to a directory origin, as the CLI does without a daemon."""
    import os

    manifest, sources = index_directory(model, sha256=sha256)
    layout = Layout(manifest)
    paths = {layout.blob_of_file[path]: source for path, source in sources.items()}
    origin.mkdir(exist_ok=True)
    with contextlib.closing(open_origin(origin.as_uri())) as opened:
        OriginRepo(opened).push(
            layout,
            Ref.parse(ref),
            open_blob=lambda number: os.open(paths[number], os.O_RDONLY),
            spelling=spelled(ref),
        )
    assert encode(manifest)
    return layout
