"""Real trackers in this process, on loopback ports, over real directories."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from p2pcache.core.format.manifest import Chunk, digest_of, encode, make_file, make_manifest
from p2pcache.core.settings import LeaseSettings, MemberSettings
from p2pcache.ids import Ref
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.tracker.app import TrackerApp
from p2pcache.tracker.settings import TrackerSettings

X = "ab" * 32
QUICK_MEMBERS = MemberSettings(heartbeat_s=0.2, expiry_s=0.8, reconnect_grace_s=0.2)
QUICK_LEASES = LeaseSettings(ttl_s=0.8)
REF = Ref.parse("team/model:v1")


@contextlib.asynccontextmanager
async def tracker(
    origin: Path | str | None = None,
    *,
    quick: bool = False,
    **settings: Any,
) -> AsyncIterator[TrackerApp]:
    """A running tracker; `quick`: its clocks run in fractions of a second."""
    url = "" if origin is None else f"file://{origin}" if isinstance(origin, Path) else origin
    app = TrackerApp(
        TrackerSettings(**{"listen": "127.0.0.1:0", "origin": url, **settings}),
        members=QUICK_MEMBERS if quick else None,
        leases=QUICK_LEASES if quick else None,
    )
    async with app.running():
        yield app


def publish(root: Path, *, files: int = 1, ref: Ref = REF) -> tuple[str, bytes]:
    """Put a manifest and a tag into a directory origin; blobs aren't the tracker's business."""
    chunk = Chunk(5, bytes(32))
    manifest = make_manifest(make_file(f"file-{i:06}", [chunk]) for i in range(files))
    encoded = encode(manifest)
    digest = digest_of(encoded)
    origin = open_origin(f"file://{root}")
    repo = OriginRepo(origin)
    repo.put_manifest(digest, encoded)
    repo.put_tag(ref, digest)
    origin.close()
    return digest, encoded


async def get(address: str, path: str) -> tuple[int, Any]:
    """Status and JSON of a GET."""
    async with aiohttp.ClientSession() as http, http.get(f"http://{address}{path}") as answer:
        if "json" in answer.content_type:
            return answer.status, await answer.json()
        return answer.status, await answer.text()
