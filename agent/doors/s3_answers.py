"""The answers of an S3 server, in the XML that its clients read (API version 2006-03-01)."""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote
from xml.sax.saxutils import escape

from aiohttp import web

MAX_KEYS = 1000  # of one page, as S3
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class Listed(NamedTuple):
    """An object of a listing."""

    key: str
    size: int
    etag: str
    modified: str  # as RFC 3339


class Question(NamedTuple):
    """What `ListObjectsV2` or `ListObjects` asks."""

    bucket: str
    prefix: str
    delimiter: str
    after: str  # keys and common prefixes up to this one were given already
    most: int
    url_encoded: bool
    first: bool  # `ListObjects`, of version 1: the next page is asked for by a name


def xml(root: str, body: str, status: int = 200) -> web.Response:
    """An answer with this element."""
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{_NAMESPACE}">{body}</{root}>'
    return web.Response(text=text, status=status, content_type="application/xml")


def error(code: str, message: str, status: int) -> web.Response:
    """A failed request. Errors have no namespace."""
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Error>'
        f"{_element('Code', code)}{_element('Message', message)}</Error>"
    )
    return web.Response(text=text, status=status, content_type="application/xml")


def buckets(names: Iterable[str], created: str) -> web.Response:
    """`ListBuckets`."""
    listed = "".join(
        f"<Bucket>{_element('Name', name)}{_element('CreationDate', created)}</Bucket>"
        for name in names
    )
    owner = "<Owner><ID>p2pcache</ID><DisplayName>p2pcache</DisplayName></Owner>"
    return xml("ListAllMyBucketsResult", f"{owner}<Buckets>{listed}</Buckets>")


def page(asked: Question, objects: Iterable[Listed]) -> web.Response:
    """One page of a listing.

    Args:
        asked: the question.
        objects: of the bucket that begin with the prefix, ascending by key.
    """
    rows = list(itertools.islice(_rows(asked, objects), asked.most + 1))
    # Behind a page of none there is none: clients would ask for ever.
    more = len(rows) > asked.most > 0
    rows = rows[: asked.most]

    def name(text: str) -> str:
        return quote(text, safe="/") if asked.url_encoded else text

    body = [
        _element("Name", asked.bucket), _element("Prefix", name(asked.prefix)),
        _element("MaxKeys", str(asked.most)), _element("IsTruncated", "true" if more else "false"),
        _element("Marker", name(asked.after)) if asked.first else _element("KeyCount", str(len(rows))),
    ]  # fmt: skip
    if asked.delimiter:
        body.append(_element("Delimiter", name(asked.delimiter)))
    if asked.url_encoded:
        body.append(_element("EncodingType", "url"))
    if more and rows:
        last = rows[-1]
        after = last if isinstance(last, str) else last.key
        body.append(
            _element("NextMarker", name(after)) if asked.first
            else _element("NextContinuationToken", after.encode().hex())
        )  # fmt: skip
    for row in rows:
        if isinstance(row, str):
            body.append(f"<CommonPrefixes>{_element('Prefix', name(row))}</CommonPrefixes>")
        else:
            body.append(
                f"<Contents>{_element('Key', name(row.key))}{_element('LastModified', row.modified)}"
                f"{_element('ETag', row.etag)}{_element('Size', str(row.size))}"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
    return xml("ListBucketResult", "".join(body))


def _rows(asked: Question, objects: Iterable[Listed]) -> Iterator[Listed | str]:
    """Objects, and the common prefixes of those with the delimiter behind the prefix."""
    common = ""
    for one in objects:
        inside = one.key[len(asked.prefix) :]
        head, found, _ = inside.partition(asked.delimiter) if asked.delimiter else (inside, "", "")
        if not found:
            if one.key > asked.after:
                yield one
            continue
        group = asked.prefix + head + asked.delimiter
        if group != common:
            common = group
            if group > asked.after:
                yield group


def _element(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"
