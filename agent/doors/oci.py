"""The OCI door: unmodified clients of a registry read models through this agent, while chunks arrive.

Each model is a ModelPack artifact: one layer a file, whose digest is the file's SHA-256. Below `image/` it is an image,
for runtimes that know no artifacts. Nothing can be written.
"""

import base64
import binascii
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from aiohttp import web

from p2pcache.agent.api.gate import CALLER, bearer_token
from p2pcache.agent.api.rights import Caller, Denied
from p2pcache.agent.doors import oci_answers as answers
from p2pcache.agent.doors.oci_images import Images
from p2pcache.agent.doors.open_model import ModelDoor, OpenModel, Part
from p2pcache.core.format.manifest import decode
from p2pcache.core.format.oci.model_pack import (
    MEDIA_CONFIG,
    MEDIA_MANIFEST,
    Artifact,
    make_artifact,
)
from p2pcache.core.protocol.tokens import Scope
from p2pcache.errors import Busy, IntegrityError, NotFound, P2PCacheError, UsageError
from p2pcache.ids import DEFAULT_NAMESPACE, Ref
from p2pcache.io import pools
from p2pcache.io.http import server
from p2pcache.io.models.store import Store

LOOK_AGAIN_S = (
    30.0  # between two searches of storage for what isn't there: each reads all tags of a name
)
IMAGE = "image/"  # before the name of a model; a namespace and a name are never three parts
KEPT_BYTES = 64 << 20  # of artifacts that were shown lately: clients ask for many layers of one
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BYTES = "application/octet-stream"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Upstream = Callable[[Ref], str]
"""The URL from which a tag is imported if it is missing; "": from nowhere."""


def token_of(request: web.Request) -> str:
    """The token of a request: as a bearer, or as the password that a client was given for this registry."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return bearer_token(request)
    try:
        return base64.b64decode(text, validate=True).decode("ascii").partition(":")[2]
    except (binascii.Error, ValueError):
        raise Denied("the user and the password can't be read") from None


class _Missing(Exception):
    """Something isn't there; `code` is the registry's word for it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Repository(NamedTuple):
    """What a URL names before `/manifests/` or `/blobs/`."""

    name: str  # as the client wrote it
    ref: Ref  # with any tag
    is_image: bool = False


class OciDoor:
    """The handlers of the OCI door."""

    def __init__(self, store: Store, models: ModelDoor, upstream: Upstream) -> None:
        self._store = store
        self._models = models
        self._upstream = upstream
        self._images = Images(models)
        # By model, latest last; None: no registry can show it.
        self._artifacts: OrderedDict[str, Artifact | None] = OrderedDict()
        self._kept_bytes = 0
        # When storage was searched, by namespace and name.
        self._looked: dict[tuple[str, str], float] = {}

    def application(self, gate: Any) -> web.Application:
        """The door as an application, behind a gate's middleware."""
        app = server.make_app(_oci_errors, gate)
        for path, handler in (
            ("/v2", self.get_version), ("/v2/", self.get_version), ("/v2/_catalog", self.get_catalog),
            ("/v2/{name:.+}/manifests/{reference}", self.get_artifact),
            ("/v2/{name:.+}/blobs/{digest}", self.get_layer), ("/v2/{name:.+}/tags/list", self.get_tags),
            ("/v2/{name:.+}/referrers/{digest}", self.get_referrers),
        ):  # fmt: skip
            app.router.add_get(path, handler)
        return app

    async def get_version(self, request: web.Request) -> web.Response:
        """Clients ask this first, to learn whether they must log in."""
        answer = server.json_response({})
        answer.headers.update(answers.VERSION)
        return answer

    async def get_catalog(self, request: web.Request) -> web.Response:
        """The names of this cache's models."""
        caller: Caller = request[CALLER]
        refs = await self._models.refs()
        found = {f"{ref.namespace}/{ref.name}" for ref in refs if caller.sees(ref.namespace)}
        return answers.names(request, sorted(found), "repositories")

    async def get_tags(self, request: web.Request) -> web.Response:
        """The tags of a model."""
        wanted = _repository(request)
        tags = {tag for tag, _ in await self._models.known(wanted.ref)}
        tags |= {ref.tag for ref, _ in await self._models.resolver.stored_tags(wanted.ref)}
        if not tags:
            raise _Missing("NAME_UNKNOWN", f"no model {wanted.name} is known here")
        return answers.names(request, sorted(tags), "tags", name=wanted.name)

    async def get_referrers(self, request: web.Request) -> web.Response:
        """What refers to an artifact: nothing does."""
        _ = _repository(request)
        _ = _digest(request.match_info["digest"])
        return answers.no_referrers()

    async def get_artifact(self, request: web.Request) -> web.Response:
        """The manifest of an artifact, by tag or by digest."""
        wanted, reference = _repository(request), request.match_info["reference"]
        if wanted.is_image:
            return await self._image(wanted, reference)
        if ":" in reference:
            digest = _digest(reference)
            async for ref, artifact in self._known(wanted.ref):
                if artifact.digest == digest:
                    await self._models.open(ref)  # from now on its layers are known here
                    return answers.content(artifact.manifest, digest, MEDIA_MANIFEST)
            raise _Missing("MANIFEST_UNKNOWN", f"no tag of {wanted.name} has {digest}")
        artifact = await self._tagged(wanted, reference)
        return answers.content(artifact.manifest, artifact.digest, MEDIA_MANIFEST)

    async def get_layer(self, request: web.Request) -> web.StreamResponse:
        """A blob: a configuration, or a file, of which each byte is proved; bytes that aren't here yet are awaited."""
        wanted, digest = _repository(request), _digest(request.match_info["digest"])
        if wanted.is_image:
            return await self._image_blob(request, wanted, digest)
        async for ref, artifact in self._known(wanted.ref):
            if artifact.config_digest == digest:
                return answers.content(artifact.config, digest, MEDIA_CONFIG)
            if digest in artifact.paths:
                return await self._send(request, ref, artifact.paths[digest])
        raise _Missing("BLOB_UNKNOWN", f"no tag of {wanted.name} has {digest}")

    async def _send(self, request: web.Request, ref: Ref, path: str) -> web.StreamResponse:
        model = await self._models.open(ref)
        return await self._send_parts(request, model, [Part(model.file(path))])

    async def _send_parts(
        self, request: web.Request, model: OpenModel, parts: list[Part]
    ) -> web.StreamResponse:
        headers = answers.content_headers(request.match_info["digest"], _BYTES)
        headers["Accept-Ranges"] = "bytes"
        answer = await self._models.send_parts(request, model, parts, headers)
        if answer is not None:
            return answer
        size = sum(part.size for part in parts)
        return web.Response(status=416, headers=headers | {"Content-Range": f"bytes */{size}"})

    # -- images --------------------------------------------------------------------------------------

    async def _image(self, wanted: _Repository, reference: str) -> web.Response:
        if ":" in reference:
            digest = _digest(reference)
            for _, image in await self._images.known(wanted.ref):
                if digest in image.blobs:
                    return answers.content(image.blobs[digest][0], digest, image.blobs[digest][1])
            raise _Missing(
                "MANIFEST_UNKNOWN",
                f"no image of {wanted.name} that was made here has {digest}; ask for its tag first",
            )
        image = await self._images.made(await self._opened(wanted, reference))
        data, media = image.blobs[image.digest]
        return answers.content(data, image.digest, media)

    async def _image_blob(
        self, request: web.Request, wanted: _Repository, digest: str
    ) -> web.StreamResponse:
        for ref, image in await self._images.known(wanted.ref):
            if digest in image.blobs:
                return answers.content(image.blobs[digest][0], digest, image.blobs[digest][1])
            if digest in image.layers:
                model = await self._models.open(ref)
                return await self._send_parts(
                    request, model, await self._images.parts(model, image.layers[digest])
                )
        raise _Missing("BLOB_UNKNOWN", f"no image of {wanted.name} that was made here has {digest}")

    # -- artifacts -----------------------------------------------------------------------------------

    async def _tagged(self, wanted: _Repository, tag: str) -> Artifact:
        """The artifact that a tag means now.

        Raises:
            _Missing: there is none.
            P2PCacheError: it can't be read now, or shown by a registry.
        """
        model = await self._opened(wanted, tag)
        digest = model.layout.digest
        kept = self._artifacts.get(digest)
        if kept is not None:
            return kept
        try:
            artifact = await pools.WORK.run(make_artifact, model.files.values())
        except NotFound as error:
            raise _Missing("MANIFEST_UNKNOWN", f"{model.ref.short}: {error}") from None
        self._keep(digest, artifact)
        return artifact

    async def _opened(self, wanted: _Repository, tag: str) -> OpenModel:
        """The model that a tag means now, imported if it is missing.

        Raises:
            _Missing: there is none.
            P2PCacheError: it can't be read now.
        """
        try:
            ref = Ref.parse(f"{wanted.ref.namespace}/{wanted.ref.name}:{tag}")
        except UsageError:
            raise _Missing("MANIFEST_UNKNOWN", f"no tag can be called {tag[:200]!r}") from None
        try:
            return await self._models.open(ref, self._upstream(ref))
        except (NotFound, UsageError) as error:  # a registry may have it, but packed
            raise _Missing("MANIFEST_UNKNOWN", f"{ref.short}: {error}") from None

    async def _known(self, ref: Ref) -> AsyncIterator[tuple[Ref, Artifact]]:
        """The models of a name, with refs that open them: those known here, then those that only storage knows.

        Those that no registry can show are left out.
        """
        known = dict.fromkeys(digest for _, digest in await self._models.known(ref))
        for digest in known:
            artifact = await self._made(digest)
            if artifact is not None:
                yield ref._replace(digest=digest), artifact
        now, name = time.monotonic(), ref[:2]
        self._looked = {one: at for one, at in self._looked.items() if now - at < LOOK_AGAIN_S}
        if name in self._looked:
            return
        stored = await self._models.resolver.stored_tags(ref)
        self._looked[name] = now
        for tag, digest in stored:
            artifact = None if digest in known else await self._made(digest)
            if artifact is not None:
                yield tag, artifact

    async def _made(self, digest: str) -> Artifact | None:
        """The artifact of a model; None: no registry can show it, or its manifest is gone."""
        if digest in self._artifacts:
            self._artifacts.move_to_end(digest)
            return self._artifacts[digest]
        try:
            data = await pools.STEPS.run(self._store.manifest, digest)
            data = data or await self._models.resolver.manifest(digest)
        except (NotFound, IntegrityError):
            return None
        artifact = await pools.WORK.run(_artifact_of, data, digest)
        self._keep(digest, artifact)
        return artifact

    def _keep(self, digest: str, artifact: Artifact | None) -> None:
        if digest in self._artifacts:
            return
        self._artifacts[digest] = artifact
        self._kept_bytes += _bytes_of(artifact)
        while self._kept_bytes > KEPT_BYTES:
            _, oldest = self._artifacts.popitem(last=False)
            self._kept_bytes -= _bytes_of(oldest)


def _bytes_of(artifact: Artifact | None) -> int:
    """What it takes in memory, nearly."""
    return 200 + (0 if artifact is None else 2 * len(artifact.manifest))


def _artifact_of(data: bytes, digest: str) -> Artifact | None:
    try:
        return make_artifact(decode(data, digest).files)
    except (NotFound, UsageError, IntegrityError):
        return None


def _repository(request: web.Request) -> _Repository:
    """What the URL names, if the caller may read it.

    Raises:
        Denied: it may not.
        _Missing: there can't be such a model.
    """
    name = request.match_info["name"]
    is_image = name.startswith(IMAGE) and name.count("/") == 2
    text = name.removeprefix(IMAGE) if is_image else name
    text = text if "/" in text else f"{DEFAULT_NAMESPACE}/{text}"
    try:
        if ":" in text or "@" in text:
            raise UsageError("a name, not a ref")
        ref = Ref.parse(text)
    except UsageError:
        raise _Missing("NAME_UNKNOWN", f"no model can be called {name[:200]!r}") from None
    request[CALLER].need(Scope.PULL, ref.namespace, f"{request.method} {text}")
    return _Repository(name, ref, is_image)


class _BadDigest(UsageError):
    """Not a digest."""


def _digest(text: str) -> str:
    if _DIGEST.fullmatch(text) is None:
        raise _BadDigest(f"not a digest: {text[:100]!r}; expected sha256 and 64 hex digits")
    return text


@web.middleware
async def _oci_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Say errors as a registry does."""
    try:
        return await handler(request)
    except _Missing as error:
        return answers.error(404, error.code, str(error))
    except Denied as error:
        if "Authorization" in request.headers:
            return answers.error(403, "DENIED", str(error))
        answer = answers.error(401, "UNAUTHORIZED", str(error))
        answer.headers["WWW-Authenticate"] = 'Basic realm="p2pcache"'  # so that clients log in
        return answer
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
        if request.method in ("GET", "HEAD"):
            return answers.error(404, "NAME_UNKNOWN", f"nothing is at {request.path[:200]}")
        return answers.error(
            405, "UNSUPPORTED", "this registry only reads; push with p2pcache push"
        )
    except Busy:
        raise
    except _BadDigest as error:
        return answers.error(400, "DIGEST_INVALID", str(error))
    except P2PCacheError as error:
        status = server.status_of(error)
        code = {400: "MANIFEST_INVALID", 403: "DENIED", 404: "MANIFEST_UNKNOWN"}.get(
            status, "UNAVAILABLE"
        )
        return answers.error(status, code, str(error))
