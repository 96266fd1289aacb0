"""The answers of a registry, in the shapes of the OCI distribution specification, version 1.1."""

from collections.abc import Sequence
from urllib.parse import quote

from aiohttp import web

from p2pcache.errors import UsageError
from p2pcache.io.http import server

VERSION = {"Docker-Distribution-API-Version": "registry/2.0"}  # old clients look for it
PAGE = 1000  # names of one list
MEDIA_INDEX = "application/vnd.oci.image.index.v1+json"


def error(status: int, code: str, message: str) -> web.Response:
    """A failed request."""
    answer = server.json_response(
        {"errors": [{"code": code, "message": message, "detail": {}}]}, status=status
    )
    answer.headers.update(VERSION)
    return answer


def content(data: bytes, digest: str, media: str) -> web.Response:
    """A manifest or a configuration."""
    return web.Response(body=data, headers=content_headers(digest, media))


def content_headers(digest: str, media: str) -> dict[str, str]:
    """The headers of bytes that are named by their digest."""
    return {
        **VERSION, "Docker-Content-Digest": digest, "ETag": f'"{digest}"', "Content-Type": media,
    }  # fmt: skip


def names(request: web.Request, found: Sequence[str], key: str, **more: str) -> web.Response:
    """A page of a list of names.

    Args:
        request: whose query says how many names, and behind which one.
        found: all names, ascending.
        key: of the list in the answer.
        more: what else is in the answer.

    Raises:
        UsageError: the query makes no sense.
    """
    most, last = request.query.get("n", str(PAGE)), request.query.get("last", "")
    if not (most.isascii() and most.isdigit() and len(most) < 10):
        raise UsageError(f"n: expected a number, not {most[:20]!r}")
    rest = [name for name in found if name > last]
    page = rest[: min(int(most), PAGE)]
    answer = server.json_response({**more, key: page})
    answer.headers.update(VERSION)
    if page and len(page) < len(rest):
        following = f"{request.path}?n={len(page)}&last={quote(page[-1])}"
        answer.headers["Link"] = f'<{following}>; rel="next"'
    return answer


def no_referrers() -> web.Response:
    """The list of what refers to an artifact: nothing."""
    answer = server.json_response({"schemaVersion": 2, "mediaType": MEDIA_INDEX, "manifests": []})
    answer.headers.update({**VERSION, "Content-Type": MEDIA_INDEX})
    return answer
