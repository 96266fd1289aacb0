"""The torrent door over HTTP: a web seed (BEP 19) for BitTorrent clients, and the little that else they ask for.

`/NAMESPACE/NAME/@HEX/PATH` is a file, `/NAMESPACE/NAME/TAG.torrent` a model's torrent, `/announce` a tracker that knows
one peer: this agent. BitTorrent has no credentials, so everybody reads what is in `torrent_namespaces`: models that
are complete here, and nothing else. No request fetches anything, or is remembered.
"""

import ipaddress
import re
from typing import Any
from urllib.parse import unquote_to_bytes

from aiohttp import web

from p2pcache.agent.api.gate import CALLER
from p2pcache.agent.doors.open_model import ModelDoor, Part
from p2pcache.agent.doors.torrent_seeds import TorrentSeeds
from p2pcache.core.protocol.tokens import Scope
from p2pcache.errors import NotFound, UsageError
from p2pcache.ids import Ref, is_digest
from p2pcache.io import pools
from p2pcache.io.http import server
from p2pcache.io.models.store import Store
from p2pcache.io.peers.protocol.limits import TokenBucket
from p2pcache.io.torrents.making import MAX_PIECE_BYTES, sources_around, web_seed_url

ANNOUNCE_S = 300  # between two questions of a client
_ZEROS = bytes(MAX_PIECE_BYTES)  # never written, so the system has no memory for it
_PAD = re.compile(r"\.pad/([0-9]{1,8})")
_ENTRY = re.compile(r"@([0-9a-f]{64})")


def token_of(_: web.Request) -> str:
    """No token: everybody may read what is here."""
    return ""


class TorrentDoor:
    """The handlers of the torrent door."""

    def __init__(
        self, store: Store, models: ModelDoor, seeds: TorrentSeeds, bytes_per_s: int
    ) -> None:
        """`bytes_per_s`: cap on what all clients together get; 0: none."""
        self._store = store
        self._models = models
        self._seeds = seeds
        self._rate = TokenBucket(bytes_per_s)

    def application(self, gate: Any) -> web.Application:
        """The door as an application, behind a gate's middleware."""
        app = server.make_app(gate)
        app.router.add_get("/announce", self.get_peers)
        app.router.add_get("/{namespace}/{name}/{entry}", self.get_torrent)
        app.router.add_get("/{namespace}/{name}/{entry}/{path:.+}", self.get_file)
        return app

    async def get_file(self, request: web.Request) -> web.StreamResponse:
        """A file, or a range of it; of the padding between files, too."""
        ref, path = self._ref(request), request.match_info["path"]
        await self._need_complete(ref)
        model = await self._models.open(ref)
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        pad = _PAD.fullmatch(path)
        padding = pad is not None and path not in model.files
        part = _zeros(int(pad[1])) if pad and padding else Part(model.file(path))
        answer = await self._models.send_parts(request, model, [part], headers, self._rate.spend)
        if answer is not None:
            return answer
        return web.Response(status=416, headers=headers | {"Content-Range": f"bytes */{part.size}"})

    async def get_torrent(self, request: web.Request) -> web.StreamResponse:
        """The torrent of a model: `TAG.torrent`, or `@HEX.torrent`; with `?v1` of version 1 alone."""
        ref = self._ref(request)
        digest = await self._need_complete(ref)
        v1 = "v1" in request.query
        torrent = await pools.STEPS.run(self._seeds.torrent_of, digest, v1=v1)
        base = f"{request.scheme}://{request.host}"
        seed = web_seed_url(base, ref.namespace, ref.name)
        first, last = sources_around(f"{base}/announce", seed)
        middle = torrent._replace(offset=1, length=torrent.length - 2)
        parts = [Part(None, first), Part(None, middle), Part(None, last)]
        headers = {"Content-Type": "application/x-bittorrent"}
        model = await self._models.open(ref)
        answer = await self._models.send_parts(request, model, parts, headers, self._rate.spend)
        return answer or web.Response(status=416, headers=headers)

    async def get_peers(self, request: web.Request) -> web.Response:
        """An announce (BEP 3): this agent seeds it, or doesn't."""
        info_hash = _info_hash(request.rel_url.raw_query_string)
        host = request.transport.get_extra_info("sockname")[0] if request.transport else ""
        if info_hash not in self._seeds.info_hashes or not host:
            return web.Response(body=b"d14:failure reason30:this agent doesn't seed it yete")
        address = ipaddress.ip_address(host.partition("%")[0])
        packed = address.packed + self._seeds.port.to_bytes(2, "big")
        key = b"5:peers6:" if address.version == 4 else b"5:peers0:6:peers618:"
        return web.Response(body=b"d8:completei1e8:intervali%de%s%se" % (ANNOUNCE_S, key, packed))

    def _ref(self, request: web.Request) -> Ref:
        """What the URL names, if everybody may read it.

        Raises:
            Denied: the operator didn't choose its namespace.
            NotFound: there can't be such a model.
        """
        named = request.match_info
        entry = named["entry"].removesuffix(".torrent")
        try:
            ref = Ref.parse(f"{named['namespace']}/{named['name']}")
            if match := _ENTRY.fullmatch(entry):
                ref = ref._replace(digest=match[1])
            elif "path" in named:
                raise UsageError(f"no folder {entry[:100]!r}")
            else:
                ref = Ref.parse(f"{ref.namespace}/{ref.name}:{entry}")
        except UsageError as error:
            raise NotFound(str(error)) from None
        request[CALLER].need(Scope.PULL, ref.namespace, f"{request.method} {ref.full_name}")
        return ref

    async def _need_complete(self, ref: Ref) -> str:
        """The digest of a model that is published here under this name.

        Raises:
            NotFound: there is none.
        """
        digest = await pools.STEPS.run(self._published, ref)
        if digest is None:
            raise NotFound(f"{ref.full_name} isn't complete on this node, or has no such version")
        return digest

    def _published(self, ref: Ref) -> str | None:
        digest = self._store.named(ref)
        if digest is None or not is_digest(digest):
            return None
        model = self._store.get(digest)
        whole = model is not None and model.complete
        return digest if whole and self._store.published_path(ref, digest) else None


def _zeros(size: int) -> Part:
    """A file of padding. Clients that don't know padding ask for it as for any other file.

    Raises:
        NotFound: no torrent of ours has one so large.
    """
    if not 0 < size < MAX_PIECE_BYTES:
        raise NotFound("no such padding")
    return Part(None, memoryview(_ZEROS)[:size])


def _info_hash(query: str) -> str:
    """The info hash of an announce in hex, 20 bytes; "" if there is none."""
    for part in query.split("&"):
        key, _, value = part.partition("=")
        if key == "info_hash":
            found = unquote_to_bytes(value)
            return found.hex() if len(found) == 20 else ""
    return ""
