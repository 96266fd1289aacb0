"""A registry behind the OCI door: what nobody has is imported when a client asks, once for all nodes."""

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadtest.kit.registry import Registry, registry
from p2pcache.agent.app import AgentApp
from p2pcache.agent.imports.imports import Imports, Wish
from p2pcache.ids import Ref
from p2pcache.io.sources.settings import SourceSettings
from tests.agent.kit import agent
from tests.io.sources.registry_kit import needs_registry, pack

DATA = os.urandom(600_000)
FILES = {"config.json": b"{}", "w.safetensors": DATA}
REF = "acme/tiny:v1"

pytestmark = needs_registry


@contextlib.asynccontextmanager
async def node(tmp: Path, name: str, upstream: Registry, **more: Any) -> AsyncIterator[AgentApp]:
    (tmp / "origin").mkdir(exist_ok=True)
    source = SourceSettings(url=f"oci://{upstream.address}", **{"on_miss": True, **more})
    settings = {
        "origin": (tmp / "origin").as_uri(),
        "oci_listen": "127.0.0.1:0",
        "sources": {"up": source},
    }
    async with agent(tmp, name, **settings) as app:
        yield app


async def asked(app: AgentApp, path: str) -> tuple[int, bytes]:
    """What the door answers."""
    url = f"http://{app.listeners.door_addresses['oci_listen']}/v2/{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.read()


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URL of each import that begins."""
    begun: list[str] = []
    inner = Imports.import_shared

    def counted(self: Imports, wish: Wish) -> Any:
        begun.append(wish.url)
        return inner(self, wish)

    monkeypatch.setattr(Imports, "import_shared", counted)
    return begun


async def test_nodes_that_are_asked_at_once_import_once(tmp_path: Path, imports: list[str]) -> None:
    with registry(tmp_path) as upstream:
        upstream.push(pack(tmp_path / "packed", FILES), REF)
        async with node(tmp_path, "a", upstream) as first, node(tmp_path, "b", upstream) as second:
            path = "acme/tiny/manifests/v1"
            answers = await asyncio.gather(*(asked(app, path) for app in (first, second, first)))
            manifest = (tmp_path / "packed/manifest.json").read_bytes()
            assert answers == [(200, manifest)] * 3  # the upstream's own bytes
            assert imports == [f"oci://{upstream.address}/{REF}"]
            layer = f"acme/tiny/blobs/sha256:{hashlib.sha256(DATA).hexdigest()}"
            assert await asked(second, layer) == (200, DATA)
            assert (await asked(second, "image/acme/tiny/manifests/v1"))[0] == 200
            known = await first.resolver.resolve(Ref.parse(REF))
            assert known == await second.resolver.resolve(Ref.parse(REF))
    assert len(imports) == 1


async def test_what_cant_be_imported_is_404(tmp_path: Path, imports: list[str]) -> None:
    """So that a client goes on to the next registry of its list."""
    packed = pack(tmp_path / "packed", FILES)
    manifest = json.loads((packed / "manifest.json").read_text())
    manifest["layers"][0]["mediaType"] = "application/vnd.oci.image.layer.v1.tar"
    (packed / "manifest.json").write_text(json.dumps(manifest))
    with registry(tmp_path) as upstream:
        upstream.push(packed, "acme/image:v1")
        upstream.push(packed, "other/image:v1")
        async with node(tmp_path, "a", upstream, namespaces="acme") as app:
            for path in (
                "acme/none/manifests/v1",
                "acme/image/manifests/v1",
                "image/acme/none/manifests/v1",
            ):
                status, body = await asked(app, path)
                assert (status, json.loads(body)["errors"][0]["code"]) == (404, "MANIFEST_UNKNOWN")
            asked_for = len(imports)
            assert (await asked(app, "other/image/manifests/v1"))[0] == 404
            assert len(imports) == asked_for  # the source isn't for that namespace
        async with node(tmp_path, "b", upstream, on_miss=False) as app:
            assert (await asked(app, "acme/image/manifests/v1"))[0] == 404
            assert len(imports) == asked_for
