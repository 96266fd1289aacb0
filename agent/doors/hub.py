"""The hub door: unmodified clients of a model hub read models through this agent, while chunks arrive.

`HF_ENDPOINT=http://127.0.0.1:7402` is all that `hf download`, `snapshot_download` and `from_pretrained` need. The
routes and headers are those that huggingface_hub asks for; nothing can be written.
"""

import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from aiohttp import web

from p2pcache.agent.api.gate import CALLER, bearer_token
from p2pcache.agent.doors import hub_answers as answers
from p2pcache.agent.doors.open_model import ModelDoor, OpenModel
from p2pcache.core.format.manifest import File
from p2pcache.core.protocol.tokens import Scope
from p2pcache.errors import Busy, NotAllowed, NotFound, P2PCacheError, UsageError
from p2pcache.ids import DEFAULT_NAMESPACE, DEFAULT_TAG, Ref, hub_url
from p2pcache.io import pools
from p2pcache.io.http import server
from p2pcache.io.http.bodies import read_body
from p2pcache.io.hub_cache.layout import MAIN, commit_of, revisions

MAX_PATHS = 10_000  # of one question; the client asks for what it was told before
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FOREIGN = "hf_"  # begins every token of the Hugging Face hub

_Names = list[tuple[str, File | None]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def token_of(request: web.Request) -> str:
    """The token of a request. A hub's own is passed over: its clients send whatever they have."""
    text = bearer_token(request)
    return "" if text.startswith(_FOREIGN) else text


class _Missing(Exception):
    """Something isn't there; `kind` is the hub's word for it."""

    def __init__(self, kind: str, text: str, commit: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.commit = commit


class _Wanted(NamedTuple):
    """What a URL names."""

    repo: str  # as the client wrote it
    ref: Ref


class _Listed(NamedTuple):
    """What lies below a folder of a model."""

    key: tuple[str, str, bool]  # digest, folder, recursive
    names: _Names


class HubDoor:
    """The handlers of the hub door."""

    def __init__(self, models: ModelDoor) -> None:
        self._models = models
        self._listed: _Listed | None = None  # what was asked for last: its pages follow one another

    def application(self, gate: Any) -> web.Application:
        """The door as an application, behind a gate's middleware."""
        app = server.make_app(_hub_errors, gate)
        for repo in ("{namespace}/{name}", "{name}"):
            for path, handler in (
                (f"/api/models/{repo}", self.get_model),
                (f"/api/models/{repo}/revision/{{revision}}", self.get_model),
                (f"/api/models/{repo}/tree/{{revision}}", self.get_tree),
                (f"/api/models/{repo}/tree/{{revision}}/{{path:.+}}", self.get_tree),
                (f"/api/models/{repo}/refs", self.get_refs),
                (f"/api/models/{repo}/commits/{{revision}}", self.get_commits),
                (f"/{repo}/resolve/{{revision}}/{{path:.+}}", self.get_file),
            ):
                app.router.add_get(path, handler)
            app.router.add_post(f"/api/models/{repo}/paths-info/{{revision}}", self.post_paths_info)
        return app

    async def get_model(self, request: web.Request) -> web.Response:
        """A model and its files' names."""
        wanted = await self._wanted(request)
        model = await self._open(wanted)
        blobs = request.query.get("blobs", "").lower() in ("1", "true")
        return await _encoded(
            lambda: answers.model_info(
                wanted.repo, model.layout.digest, model.files.values(), blobs=blobs
            )
        )

    async def get_tree(self, request: web.Request) -> web.Response:
        """The entries of a folder, a page at a time."""
        wanted = await self._wanted(request)
        model = await self._open(wanted)
        folder = request.match_info.get("path", "").strip("/")
        recursive = request.query.get("recursive", "").lower() in ("1", "true")
        cursor = request.query.get("cursor", "0")
        if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise UsageError(f"no such page: {cursor[:20]!r}")
        listed = await self._names(model, folder, recursive=recursive)
        if folder and not listed:
            raise _missing_entry(model, folder)
        first, end = int(cursor), int(cursor) + answers.PAGE_ENTRIES
        page = await _encoded(lambda: answers.tree(listed[first:end]))
        if end < len(listed):
            following = request.url.update_query(cursor=str(end))
            page.headers["Link"] = f'<{following}>; rel="next"'
        return page

    async def _names(self, model: OpenModel, folder: str, *, recursive: bool) -> _Names:
        """What lies below a folder; of 100,000 files it takes a tenth of a second, and there are a hundred pages."""
        key = (model.layout.digest, folder, recursive)
        kept = self._listed
        if kept is None or kept.key != key:
            files = model.files.values()
            found = await pools.WORK.run(lambda: answers.names(files, folder, recursive=recursive))
            kept = self._listed = _Listed(key, found)
        return kept.names

    async def post_paths_info(self, request: web.Request) -> web.Response:
        """The entries of some paths; those that aren't there are left out."""
        wanted = await self._wanted(request)
        paths = await _asked_paths(request)
        model = await self._open(wanted)
        return await _encoded(lambda: answers.entries(model.files, paths))

    async def get_refs(self, request: web.Request) -> web.Response:
        """The tags of a model that this cache knows."""
        wanted = await self._wanted(request)
        known = dict(await self._models.known(wanted.ref))
        if not known:
            model = await self._open(wanted)
            known = {wanted.ref.tag: model.layout.digest}
        return server.json_response(answers.refs(revisions(known)))

    async def get_commits(self, request: web.Request) -> web.Response:
        """The one commit that a revision means: a model has no history."""
        model = await self._open(await self._wanted(request))
        return server.json_response([answers.commit(model.layout.digest, model.ref.short)])

    async def get_file(self, request: web.Request) -> web.StreamResponse:
        """A file's head or bytes, of which each is proved; those that aren't here yet are waited for."""
        wanted = await self._wanted(request)
        model = await self._open(wanted)
        path = request.match_info["path"]
        file = model.files.get(path)
        if file is None:
            raise _missing_entry(model, path)
        etag = file.sha256.hex() or model.blob_id(path)
        headers = {
            "X-Repo-Commit": commit_of(model.layout.digest), "ETag": f'"{etag}"',
            "Accept-Ranges": "bytes", "Cache-Control": "no-transform", "X-Linked-Size": str(file.size),
            "X-Linked-Etag": f'"{etag}"',
            "Content-Disposition": f"inline; filename*=UTF-8''{quote(path.rpartition('/')[2])}",
            "Content-Type": "application/octet-stream",
        }  # fmt: skip
        answer = await self._models.send_file(request, model, file, headers)
        if answer is not None:
            return answer
        return web.Response(status=416, headers=headers | {"Content-Range": f"bytes */{file.size}"})

    # -- names ---------------------------------------------------------------------------------------

    async def _wanted(self, request: web.Request) -> _Wanted:
        """What the URL names, if the caller may read it.

        Raises:
            Denied: it may not.
            _Missing: there can't be such a model or revision.
        """
        named = request.match_info
        namespace, name = named.get("namespace", ""), named["name"]
        repo = f"{namespace}/{name}" if namespace else name
        try:
            ref = Ref.parse(f"{namespace or DEFAULT_NAMESPACE}/{name}")
        except UsageError:
            raise _Missing("RepoNotFound", f"no model can be called {repo[:200]!r}") from None
        request[CALLER].need(Scope.PULL, ref.namespace, f"{request.method} {repo}")
        return _Wanted(repo, await self._revision(ref, named.get("revision", MAIN)))

    async def _revision(self, ref: Ref, revision: str) -> Ref:
        if _COMMIT.fullmatch(revision):
            for _, digest in await self._models.known(ref):
                if digest.startswith(revision):
                    return ref._replace(digest=digest)
        try:
            tagged = Ref.parse(f"{ref.namespace}/{ref.name}:{revision}")
        except UsageError:
            raise _Missing("RevisionNotFound", f"no revision {revision[:200]!r}") from None
        return tagged

    async def _open(self, wanted: _Wanted) -> OpenModel:
        """The model; the revision `main` is the tag `main`, or else `latest`.

        Raises:
            _Missing: there is none.
            P2PCacheError: it can't be read now.
        """
        tags = [wanted.ref]
        if wanted.ref.tag == MAIN and not wanted.ref.digest:
            tags.append(wanted.ref._replace(tag=DEFAULT_TAG))
        for ref in tags:
            with contextlib.suppress(NotFound):
                return await self._models.open(ref)
        url = (
            hub_url(wanted.repo, wanted.ref.tag)
            if not wanted.ref.digest and "/" in wanted.repo
            else ""
        )
        try:
            return await self._models.open(wanted.ref, url)
        except NotFound as error:
            kind = "RepoNotFound" if len(tags) > 1 else "RevisionNotFound"
            raise _Missing(kind, str(error)) from None


async def _encoded(make: Callable[[], object]) -> web.Response:
    """What `make` returns as JSON, made beside the loop: of a model of 100,000 files it takes long."""
    return server.encoded_response(await pools.WORK.run(lambda: msgspec.json.encode(make())))


def _missing_entry(model: OpenModel, path: str) -> _Missing:
    """A client that is told the commit notes the absence in its cache. That may be the hub view, which is ours."""
    commit = "" if model.download.swarm.store.complete else commit_of(model.layout.digest)
    return _Missing("EntryNotFound", f"{model.ref.short} has no file {path[:200]!r}", commit)


async def _asked_paths(request: web.Request) -> list[str]:
    """The paths of a question, from a form or from JSON.

    Raises:
        UsageError: it is neither, or they are too many.
    """
    if request.content_type == "application/json":
        body = bytes(await read_body(request, limit_bytes=server.JSON_BODY_BYTES))
        try:
            paths = msgspec.json.decode(body, type=dict[str, Any]).get("paths", [])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise UsageError(f"bad request body: {error}") from None
        paths = [paths] if isinstance(paths, str) else paths
    else:
        paths = (await request.post()).getall("paths", [])
    if not isinstance(paths, list) or len(paths) > MAX_PATHS:
        raise UsageError(f"paths: expected a list of at most {MAX_PATHS:,}")
    return [path for path in paths if isinstance(path, str)]


@web.middleware
async def _hub_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Say errors as a hub does: a kind in a header, and one line."""
    try:
        return await handler(request)
    except _Missing as error:
        headers = {"X-Error-Code": error.kind}
        if error.commit:
            headers["X-Repo-Commit"] = error.commit  # so that the absence is remembered
        return _error(404, str(error), headers)
    except Busy:
        raise
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
        if request.method in ("GET", "HEAD"):
            return _error(404, f"this door has no {request.path[:200]}; it only reads models", {})
        return _error(405, "this door only reads; push with p2pcache push", {})
    except NotAllowed as error:
        # Of any other refusal the clients say that the network may be down.
        return _error(server.status_of(error), str(error), {"X-Error-Code": "GatedRepo"})
    except P2PCacheError as error:
        return _error(server.status_of(error), str(error), {})


def _error(status: int, text: str, headers: dict[str, str]) -> web.Response:
    line = " ".join(text.split()).encode("ascii", "replace").decode()
    answer = server.json_response({"error": text}, status=status)
    answer.headers.update(headers | {"X-Error-Message": line[:500]})
    return answer
