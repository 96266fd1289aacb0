"""The S3 door: unmodified S3 clients read models through this agent, while chunks arrive.

A namespace is a bucket, and `name/tag/path` a key; `name/@HEX/path` names a model by its digest. The bucket stands in
the path, or in the host name before `s3_domain`. Nothing can be written. Signatures aren't checked: on loopback every
local user may read, elsewhere a client's session token (`AWS_SESSION_TOKEN`) is a token of this cluster.
"""

import binascii
import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any, NamedTuple

from aiohttp import web

from p2pcache.agent.api.gate import CALLER
from p2pcache.agent.api.rights import Caller, Denied
from p2pcache.agent.doors import s3_answers as answers
from p2pcache.agent.doors.open_model import ModelDoor, OpenModel
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import File
from p2pcache.core.protocol.tokens import Scope
from p2pcache.errors import Busy, NotFound, P2PCacheError, UsageError
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.http import server
from p2pcache.io.models.store import Store

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# A model's files never change, so one date for all is right, and `aws s3 sync` copies nothing twice.
MODIFIED = datetime(2020, 1, 1, tzinfo=UTC)
# Questions about a bucket or an object that are neither a listing nor a read.
_ASPECTS = {
    "abac", "accelerate", "acl", "analytics", "cors", "encryption", "intelligent-tiering", "inventory", "legal-hold",
    "lifecycle", "logging", "metadataConfiguration", "metadataTable", "metrics", "notification", "object-lock",
    "ownershipControls", "policy", "policyStatus", "publicAccessBlock", "replication", "requestPayment", "retention",
    "session", "tagging", "torrent", "uploadId", "uploads", "versioning", "versions", "website",
}  # fmt: skip
_KEY = re.compile(r"([^/]+)/([^/]+)/(.*)", re.DOTALL)
_MODIFIED_XML = MODIFIED.strftime("%Y-%m-%dT%H:%M:%S.000Z")


class _NoSuch(Exception):
    """A key or a bucket that isn't there."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Place(NamedTuple):
    """A key's model, and the path inside it."""

    ref: Ref
    start: str  # what stands before the path in the key
    path: str


def token_of(request: web.Request) -> str:
    """The session token of a request, from its header or a presigned URL."""
    name = "X-Amz-Security-Token"
    return request.headers.get(name, "") or request.query.get(name, "")


class S3Door:
    """The handlers of the S3 door."""

    def __init__(self, store: Store, models: ModelDoor, domain: str) -> None:
        """Answer for the models of a cache; `domain`: in a host name a bucket stands before it."""
        self._store = store
        self._models = models
        self._suffix = f".{domain.lower()}"

    def application(self, gate: Any) -> web.Application:
        """The door as an application, behind a gate's middleware."""
        app = server.make_app(_s3_errors, gate)
        app.router.add_get("/{path:.*}", self.get_anything)
        return app

    async def get_anything(self, request: web.Request) -> web.StreamResponse:
        """Answer for all buckets, for one, or for an object."""
        name, key = self._bucket_and_key(request)
        if not name:
            return await self.get_buckets(request)
        bucket = _checked(request, name)
        if _ASPECTS & request.query.keys():
            return answers.error("NotImplemented", "this door lists objects, and reads them", 501)
        if not key:
            return await self.get_bucket(request, bucket)
        return await self.get_object(request, bucket, key)

    def _bucket_and_key(self, request: web.Request) -> tuple[str, str]:
        """What a URL names; "" for what isn't there."""
        path = request.match_info["path"]
        host = re.sub(r":\d*$", "", request.host).lower()
        if host.endswith(self._suffix):
            return host.removesuffix(self._suffix), path
        bucket, _, key = path.partition("/")
        return bucket, key

    async def get_buckets(self, request: web.Request) -> web.Response:
        """`ListBuckets`: the namespaces of this cache's models."""
        caller: Caller = request[CALLER]
        refs = await pools.STEPS.run(self._store.refs)
        names = {ref.namespace for ref in refs if caller.sees(ref.namespace)}
        return answers.buckets(sorted(names), _MODIFIED_XML)

    async def get_bucket(self, request: web.Request, bucket: str) -> web.Response:
        """`ListObjectsV2`, `ListObjects`, `HeadBucket` and `GetBucketLocation`."""
        if request.method == "HEAD":
            return web.Response(headers={"x-amz-bucket-region": "us-east-1"})
        if "location" in request.query:
            return answers.xml("LocationConstraint", "")
        asked = _question(bucket, request)
        place = _place(bucket, asked.prefix)
        if place is None:
            return await pools.WORK.run(lambda: answers.page(asked, self._known(asked)))
        try:
            model = await self._models.open(place.ref)
        except NotFound:
            return answers.page(asked, [])
        return await pools.WORK.run(lambda: answers.page(asked, _inside(model, place, asked)))

    def _known(self, asked: answers.Question) -> list[answers.Listed]:
        """The objects of this cache's models."""
        found: list[answers.Listed] = []
        head = asked.prefix.partition("/")[0]
        for ref in self._store.refs():
            if not ref.name.startswith(head.lower()):
                continue
            start = f"{head}{ref.name[len(head) :]}/{ref.tag}/"  # as the client writes it
            shorter = min(len(start), len(asked.prefix))
            digest = self._store.named(ref)
            if ref.namespace != asked.bucket or start[:shorter] != asked.prefix[:shorter]:
                continue
            model = self._store.get(digest) if digest else None
            if model is not None:
                found += [
                    _listed(start, model.layout, file) for file in model.layout.manifest.files
                ]
        return sorted(one for one in found if one.key.startswith(asked.prefix))

    async def get_object(self, request: web.Request, bucket: str, key: str) -> web.StreamResponse:
        """`HeadObject` and `GetObject`, whole or a range; bytes that aren't here yet are waited for."""
        place = _place(bucket, key)
        if place is None:
            raise _NoSuch("NoSuchKey", f"no key {key[:200]!r}: keys are name/tag/path")
        try:
            model = await self._models.open(place.ref)
        except NotFound as error:
            raise _NoSuch("NoSuchKey", str(error)) from None
        file = model.files.get(place.path)
        if file is None:
            raise _NoSuch("NoSuchKey", f"{place.ref.short} has no file {place.path[:200]!r}")
        if "attributes" in request.query:
            body = f"<ETag>{_etag(model.layout, file)[1:-1]}</ETag><ObjectSize>{file.size}</ObjectSize>"
            return answers.xml("GetObjectAttributesResponse", body)
        return await self._send(request, model, file)

    async def _send(self, request: web.Request, model: OpenModel, file: File) -> web.StreamResponse:
        etag = _etag(model.layout, file)
        headers = {
            "ETag": etag, "Accept-Ranges": "bytes", "Last-Modified": format_datetime(MODIFIED, usegmt=True),
            "Content-Type": "application/octet-stream",
        }  # fmt: skip
        if request.query.get("partNumber", "1") != "1":
            return answers.error("InvalidPartNumber", "the object has one part, number 1", 416)
        if (status := _unmet(request, etag)) is not None:
            if status == 304:
                return web.Response(status=304, headers=headers)
            return answers.error("PreconditionFailed", "the object is another one", status)
        answer = await self._models.send_file(request, model, file, headers)
        if answer is not None:
            return answer
        refused = answers.error("InvalidRange", f"the object has {file.size} bytes", 416)
        refused.headers["Content-Range"] = f"bytes */{file.size}"
        return refused


def _checked(request: web.Request, bucket: str) -> str:
    """The namespace that a bucket is, if the caller may read it.

    Raises:
        Denied: it may not.
        _NoSuch: no namespace can be called so.
    """
    try:
        namespace = Ref.parse(f"{bucket}/x").namespace
    except UsageError:
        raise _NoSuch("NoSuchBucket", f"no namespace can be called {bucket[:100]!r}") from None
    request[CALLER].need(Scope.PULL, namespace, f"{request.method} s3://{bucket}")
    return namespace


def _question(bucket: str, request: web.Request) -> answers.Question:
    query = request.query
    first = query.get("list-type") != "2"
    most, token = query.get("max-keys", str(answers.MAX_KEYS)), query.get("continuation-token", "")
    try:
        after = query.get("marker" if first else "start-after", "")
        if token and not first:
            after = bytes.fromhex(token).decode()
        count = int(most) if most.isascii() and len(most) < 10 else -1
    except (ValueError, binascii.Error):
        raise UsageError("max-keys or continuation-token makes no sense") from None
    if count < 0:
        raise UsageError("max-keys: expected a number")
    return answers.Question(
        bucket, query.get("prefix", ""), query.get("delimiter", ""), after, min(count, answers.MAX_KEYS),
        query.get("encoding-type") == "url", first,
    )  # fmt: skip


def _place(bucket: str, key: str) -> _Place | None:
    """What a key, or a prefix, names; None: no model, since it is too short or no ref."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    name, tag, path = match.groups()
    pinned = f"{bucket}/{name}@blake3:{tag[1:]}" if tag.startswith("@") else ""
    try:
        return _Place(Ref.parse(pinned or f"{bucket}/{name}:{tag}"), f"{name}/{tag}/", path)
    except UsageError:
        return None


def _inside(model: OpenModel, place: _Place, asked: answers.Question) -> Iterator[answers.Listed]:
    """The objects of the one model that a prefix names, from the page on that is asked for."""
    files = model.layout.manifest.files  # by path
    after = asked.after.removeprefix(place.start) if asked.after.startswith(place.start) else ""
    for number in range(bisect_left(files, max(after, place.path), key=_path_of), len(files)):
        if not files[number].path.startswith(place.path):
            return
        yield _listed(place.start, model.layout, files[number])


def _path_of(file: File) -> str:
    return file.path


def _listed(start: str, layout: Layout, file: File) -> answers.Listed:
    return answers.Listed(start + file.path, file.size, _etag(layout, file), _MODIFIED_XML)


def _etag(layout: Layout, file: File) -> str:
    """Names the bytes. Its form is that of an upload in parts, so nobody takes it for an MD5."""
    return f'"{layout.blobs[layout.blob_of_file[file.path]].id[:32]}-1"'


def _unmet(request: web.Request, etag: str) -> int | None:
    """The status of a condition that isn't met; None: all are."""
    bare = etag.strip('"')
    match, other = (
        {one.strip().strip('"') for one in request.headers.get(name, "").split(",") if one.strip()}
        for name in ("If-Match", "If-None-Match")
    )
    if match and not match & {bare, "*"}:
        return 412
    if other & {bare, "*"}:
        return 304
    since = request.headers.get("If-Modified-Since", "")
    if since and not other:
        try:
            return 304 if parsedate_to_datetime(since) >= MODIFIED else None
        except (ValueError, TypeError):
            return None
    return None


@web.middleware
async def _s3_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Say errors as S3 does."""
    try:
        return await handler(request)
    except _NoSuch as error:
        return answers.error(error.code, str(error), 404)
    except Busy:
        raise
    except Denied as error:
        return answers.error("AccessDenied", str(error), 403)
    except web.HTTPNotFound:
        return answers.error("NoSuchKey", "nothing is there", 404)
    except web.HTTPMethodNotAllowed:
        return answers.error(
            "MethodNotAllowed", "this door only reads; push with p2pcache push", 405
        )
    except UsageError as error:
        return answers.error("InvalidArgument", str(error), 400)
    except P2PCacheError as error:
        status = server.status_of(error)
        code = "SlowDown" if status in (429, 503) else "InternalError"
        return answers.error(code, str(error), status)
