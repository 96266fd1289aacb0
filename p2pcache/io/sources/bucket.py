"""Any S3-compatible store as source: `s3://bucket[/prefix]`. The client is that of an S3 origin."""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import replace
from http.client import PARTIAL_CONTENT
from typing import Any

from p2pcache.core.format.source_record import check_source_key
from p2pcache.errors import Conflict, NotFound, P2PCacheError, UsageError
from p2pcache.io.origins.base import Body, OriginSettings
from p2pcache.io.origins.retry import RetryPolicy
from p2pcache.io.origins.s3.body import S3Body
from p2pcache.io.origins.s3.origin import S3Origin
from p2pcache.io.sources.base import SourceFile, SourceReader, changed
from p2pcache.io.sources.settings import SourceSettings


class BucketReader(SourceReader):
    """Objects below one prefix of one bucket."""

    def __init__(self, settings: SourceSettings, limits: OriginSettings | None = None) -> None:
        """Find credentials and make a client; no request is sent yet.

        Raises:
            UsageError: a URL, profile or endpoint that isn't understood.
            NotAllowed: credentials that can't be right, or can't be had.
        """
        limits = OriginSettings.from_env() if limits is None else limits
        limits = replace(limits, s3_profile=settings.profile, s3_endpoint=settings.endpoint)
        self._s3 = S3Origin(settings.url, limits, RetryPolicy(limits.retry_for_s))
        self.url = self._s3.url
        self._bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""

    def files(self, place: str) -> Iterator[SourceFile]:
        """As `SourceReader.files`; `place` is a prefix, or one object."""
        if place:
            check_source_key(place)
        below = self._prefix + (f"{place}/" if place else "")
        found = False
        with self._s3.client_for(place) as client:
            pages = client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=below):
                for entry in page.get("Contents", ()):
                    # By its length: a server may write a plus sign as it is, and it is then read as a space.
                    path = str(entry["Key"])[len(below) :]
                    if path and not path.endswith("/"):  # that is how tools mark a folder
                        found = True
                        yield self._listed(client, path, below + path, entry)
        if not found:
            yield self._single(place)

    def open(self, file: SourceFile, start: int, length: int) -> Body:
        """As `SourceReader.open`; the ETag is a condition of the read."""
        check_source_key(file.key)
        url = f"{self.url}/{file.key}"
        condition = {"IfMatch": file.validator.removeprefix("etag:")} if file.validator else {}
        try:
            with self._s3.client_for(file.key) as client:
                given = client.get_object(
                    Bucket=self._bucket, Key=self._prefix + file.key,
                    Range=f"bytes={start}-{start + length - 1}", **condition,
                )  # fmt: skip
        except Conflict:
            changed(url)
        came = given.get("ContentLength")
        body = S3Body(
            url, given["Body"]._raw_stream, length,  # noqa: SLF001 - as an S3 origin reads
            lambda error: self._s3.failure(file.key, error), counted=came is not None,
        )  # fmt: skip
        try:
            self._check(file, given, start, length)
        except P2PCacheError:
            body.close()
            raise
        return body

    def rest(self) -> None:
        """As `SourceReader.rest`."""
        self._s3.rest()

    def close(self) -> None:
        """As `SourceReader.close`."""
        self._s3.close()

    def _listed(self, client: Any, path: str, full_key: str, entry: Any) -> SourceFile:
        key = full_key[len(self._prefix) :]
        sha256 = b""
        algorithms = entry.get("ChecksumAlgorithm") or ()
        if "SHA256" in algorithms and entry.get("ChecksumType") == "FULL_OBJECT":
            head = client.head_object(Bucket=self._bucket, Key=full_key, ChecksumMode="ENABLED")
            sha256 = _sha256_of(head)
        return SourceFile(path, key, int(entry["Size"]), _validator(entry), sha256)

    def _single(self, place: str) -> SourceFile:
        """The object of exactly this key."""
        where = f"{self.url}/{place}" if place else self.url
        if not place:
            raise NotFound(f"{where} holds no objects")
        try:
            with self._s3.client_for(place) as client:
                head = client.head_object(
                    Bucket=self._bucket, Key=self._prefix + place, ChecksumMode="ENABLED"
                )
        except NotFound:
            raise NotFound(f"{where}: no object, and none below it") from None
        name = place.rpartition("/")[2]
        return SourceFile(
            name, place, int(head["ContentLength"]), _validator(head), _sha256_of(head)
        )

    def _check(self, file: SourceFile, given: Any, start: int, length: int) -> None:
        """Refuse other bytes than those that were listed, also from a store that ignores conditions."""
        if file.validator and _validator(given) != file.validator:
            changed(f"{self.url}/{file.key}")
        partial = given["ResponseMetadata"]["HTTPStatusCode"] == PARTIAL_CONTENT
        came = given.get("ContentLength")
        if came != length or (start and not partial):
            raise UsageError(f"{self._s3.endpoint} ignores range requests; p2pcache needs them")


def _validator(answer: Any) -> str:
    tag = str(answer.get("ETag", ""))
    return f"etag:{tag}" if tag else ""


def _sha256_of(head: Any) -> bytes:
    """The SHA-256 of the whole object; b"": the store doesn't know it, or only that of its parts."""
    text = str(head.get("ChecksumSHA256", ""))
    if head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT" or "-" in text:
        return b""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
