"""Stores of three clouds, as a server on this machine plays them."""

import base64
import json
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Source
from tests.io.sources.kit import Answer

KEY = base64.b64encode(b"key of the account" * 2).decode()
Entry = tuple[str, object]  # name and size


class Store(NamedTuple):
    """How a store of one kind is asked, and how it answers."""

    url: str
    listing: Callable[[list[Entry], str], Answer]  # entries, and what names the next page
    asks_for_list: Callable[[str], bool]
    validator: str
    tag: dict[str, str]  # headers of an object with that validator


def google(entries: list[Entry], following: str) -> Answer:
    items = [{"name": name, "size": str(size), "generation": "7"} for name, size in entries]
    page = {"items": items, **({"nextPageToken": following} if following else {})}
    return 200, {"Content-Type": "application/json"}, json.dumps(page).encode()


def azure(entries: list[Entry], following: str) -> Answer:
    blobs = "".join(
        f"<Blob><Name>{escape(name)}</Name><Properties><Content-Length>{size}</Content-Length><Etag>0x7</Etag>"
        "</Properties></Blob>"
        for name, size in entries
    )
    text = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
    return 200, {"Content-Type": "application/xml"}, text.encode()


def amazon(entries: list[Entry], following: str) -> Answer:
    objects = "".join(
        f'<Contents><Key>{escape(name)}</Key><Size>{size}</Size><ETag>"7"</ETag></Contents>'
        for name, size in entries
    )
    more = (
        f"<IsTruncated>true</IsTruncated><NextContinuationToken>{following}</NextContinuationToken>"
    )
    text = f"<ListBucketResult>{objects}{more if following else ''}</ListBucketResult>"
    return 200, {"Content-Type": "application/xml"}, text.encode()


def queried(name: str) -> Callable[[str], bool]:
    return lambda path: name in parse_qs(urlsplit(path).query)


STORES = {
    "gs": Store("gs://lake", google, queried("fields"), "generation:7", {"X-Goog-Generation": "7"}),
    "az": Store("az://lake", azure, queried("comp"), 'etag:"0x7"', {"ETag": '"0x7"'}),
    "s3": Store("s3://lake", amazon, queried("list-type"), 'etag:"7"', {"ETag": '"7"'}),
}  # fmt: skip


def source_of(url: str, endpoint: str, **more: object) -> Source:
    source = Source("s", SourceSettings(url=url, endpoint=endpoint, **more))  # type: ignore[arg-type]
    source._policy.retry_for_s = 0.0
    return source
