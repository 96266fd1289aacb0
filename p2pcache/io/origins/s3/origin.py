"""Any S3-compatible store as origin: `s3://bucket[/prefix]`.

botocore signs, finds credentials, resolves endpoints and follows bucket regions; it is driven
from our threads and retries nothing (docs/lab/0001-s3-client.md).
"""

import contextlib
import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from http.client import PARTIAL_CONTENT as PARTIAL
from typing import Any

from botocore.exceptions import ClientError

from p2pcache.errors import (
    Conflict,
    IntegrityError,
    NotAllowed,
    NotFound,
    OriginChanged,
    OriginUnavailable,
    P2PCacheError,
    UsageError,
)
from p2pcache.io.origins.base import (
    ABSENT,
    MAX_KEY_BYTES,
    Body,
    Expect,
    NoContainer,
    ObjectInfo,
    Origin,
    OriginSettings,
    Readable,
    Renewed,
    check_key,
    check_prefix,
)
from p2pcache.io.origins.causes import causes
from p2pcache.io.origins.multipart import Multipart, Uploader
from p2pcache.io.origins.retry import RetryPolicy
from p2pcache.io.origins.s3.body import S3Body
from p2pcache.io.origins.s3.client import Clients
from p2pcache.io.origins.s3.errors import FOREIGN, came_damaged, says_why, translate
from p2pcache.io.origins.s3.part_calls import PartCalls, crc32_of
from p2pcache.io.origins.s3.presigned import Presigned

log = logging.getLogger(__name__)

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")  # old and foreign buckets are lenient
_PROBE = "p2pcache/v1/probe"
# Objects up to this size are signed as a whole, which costs a millisecond: no probe for them.
_SIGNED_BYTES = 1024 * 1024


class S3Origin(Origin):
    """One bucket and prefix. Thread-safe, as botocore clients are."""

    def __init__(self, url: str, settings: OriginSettings, policy: RetryPolicy) -> None:
        """Find credentials and make a client; no request is sent yet.

        Raises:
            UsageError: a URL, profile or endpoint that isn't understood.
            NotAllowed: credentials that can't be right, or can't be had.
        """
        bucket, _, prefix = url.removeprefix("s3://").rstrip("/").partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise UsageError(
                f"not a bucket URL: {url.rpartition('@')[2]!r}; expected s3://BUCKET[/PREFIX], with "
                "keys in the environment or a profile"
            )
        _check_url_prefix(prefix)
        self.url = f"s3://{bucket}" + (f"/{prefix}" if prefix else "")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._policy = policy
        self._part_bytes = settings.part_bytes
        self._presigned = Presigned(bucket)
        self._uploader = Uploader(settings.parts)
        self._probe_lock = threading.Lock()
        self._conditional: bool | None = None
        self._sums: bool | None = None
        self._endpoint = "S3"
        self._clients: Clients | None = None
        try:
            self._clients = Clients(settings)
        except FOREIGN as error:
            raise self.failure("", error) from None
        self._endpoint = str(self._clients.client.meta.endpoint_url)

    @property
    def endpoint(self) -> str:
        """URL of the server that is asked."""
        return self._endpoint

    @property
    def _client(self) -> Any:
        assert self._clients is not None
        return self._clients.client

    @property
    def conditional_put(self) -> bool:
        """Tried with a small object of its own: some stores ignore the headers silently."""
        with self._probe_lock:
            if self._conditional is None:
                self._conditional = self._probe()
            return self._conditional

    def get(self, key: str, *, limit: int) -> tuple[bytes, str]:
        """As `Origin.get`."""
        with self.client_for(key) as client:
            answer = client.get_object(Bucket=self._bucket, Key=self._key(key))
            size = answer.get("ContentLength")
            with contextlib.closing(answer["Body"]) as stream:
                if size is not None and size > limit:
                    raise IntegrityError(
                        f"{self.url}/{key} has {size} bytes, over its limit of {limit}"
                    )
                data = bytes(stream.read(limit + 1))
            if len(data) > limit:
                raise IntegrityError(f"{self.url}/{key} has over {limit} bytes")
            if size is not None and len(data) != size:
                raise OriginUnavailable(f"{self.url}/{key}: {len(data)} of {size} bytes came")
            return data, str(answer.get("ETag", ""))

    def stat(self, key: str) -> ObjectInfo | None:
        """As `Origin.stat`."""
        try:
            with self.client_for(key) as client:
                answer = self._head(client, key)
        except NotFound:
            return None
        return ObjectInfo(key, int(answer["ContentLength"]), str(answer.get("ETag", "")))

    def open(self, key: str, start: int, length: int) -> Body:
        """As `Origin.open`."""
        with self.client_for(key) as client:
            full_key = self._key(key)
            answer = self._presigned.get(client, full_key, start, length)
            if answer is not None:
                headers, raw, status = answer.headers, answer.raw, int(answer.status_code)
                size = headers.get("content-length")
                came = None if size is None else int(size)
            else:
                given = client.get_object(
                    Bucket=self._bucket, Key=full_key, Range=f"bytes={start}-{start + length - 1}"
                )
                raw, came = given["Body"]._raw_stream, given.get("ContentLength")  # noqa: SLF001
                status = given["ResponseMetadata"]["HTTPStatusCode"]
                self._presigned.learn(client, full_key)
            body = S3Body(f"{self.url}/{key}", raw, length, lambda error: self.failure(key, error),
                          counted=came is not None)  # fmt: skip
            try:
                self._check_range(key, came, start, length, partial=status == PARTIAL)
            except P2PCacheError:
                body.close()
                raise
            return body

    def put(self, key: str, data: bytes, *, expect: Expect = None) -> str:
        """As `Origin.put`."""
        condition: dict[str, str] = {}
        if expect is ABSENT:
            condition = {"IfNoneMatch": "*"}
        elif expect is not None:
            condition = {"IfMatch": expect}
        try:
            with self.client_for(key) as client:
                answer = client.put_object(
                    Bucket=self._bucket, Key=self._key(key), Body=data, **condition
                )
        except NoContainer:
            raise
        except NotFound:  # how AWS refuses If-Match where nothing is
            raise Conflict(f"{self.url}/{key} was deleted by somebody else") from None
        return str(answer.get("ETag", ""))

    def put_file(
        self,
        key: str,
        source: Readable,
        size: int,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """As `Origin.put_file`: several parts at once, each retried by itself."""
        summed = size > _SIGNED_BYTES and self._policy.call(self._proves_sums)

        def stored() -> int | None:
            found = self.stat(key)
            return None if found is None else found.size

        upload = Multipart(
            PartCalls(self._calls(key), stored, summed=summed), self._policy, progress
        )
        upload.upload(self._uploader, source, size, self._part_bytes)

    def _calls(self, key: str) -> Callable[..., dict[str, Any]]:
        where = {"Bucket": self._bucket, "Key": self._key(key)}

        def call(operation: str, **arguments: object) -> dict[str, Any]:
            with self.client_for(key) as client:
                answer: dict[str, Any] = getattr(client, operation)(**where, **arguments)
            return answer

        return call

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """As `Origin.list`. Foreign keys that ours can't be are left out."""
        check_prefix(prefix)
        with self.client_for(prefix) as client:
            pages = client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for entry in page.get("Contents", ()):
                    # By its length: a server may write a plus sign as it is, and it is then read as a space.
                    key = str(entry["Key"])[len(self._prefix) :]
                    with contextlib.suppress(UsageError):
                        check_key(key)
                        yield ObjectInfo(key, int(entry["Size"]), str(entry.get("ETag", "")))

    def delete(self, key: str) -> None:
        """As `Origin.delete`."""
        with contextlib.suppress(NotFound), self.client_for(key) as client:
            client.delete_object(Bucket=self._bucket, Key=self._key(key))

    def rest(self) -> None:
        """As `Origin.rest`; a connection in use is closed when its body has been read."""
        self._client.close()

    def close(self) -> None:
        """Drop pooled connections and the upload threads."""
        self._uploader.close()
        self.rest()

    def failure(self, key: str, error: Exception, client: Any = None) -> P2PCacheError:
        """The error of our tree for a foreign one about `key` ("": the whole origin).

        The foreign one must not become the cause of ours: it may quote keys, and traces show causes.

        Args:
            key: of the object.
            error: one of `FOREIGN`.
            client: the client of the request; its credentials may have been renewed meanwhile.
        """
        what = f"{self.url}/{key}" if key else self.url
        if self._clients is not None:
            self._clients.hide()
            if client is not None and self._clients.renewed(client, error):
                return Renewed(f"{what}: the S3 credentials were renewed just now; ask again")
        log.debug("%s: %s", what, " <- ".join(type(one).__name__ for one in causes(error)))
        return translate(error, what, self._bucket, self._endpoint)

    @contextlib.contextmanager
    def client_for(self, key: str) -> Iterator[Any]:
        """The client, for one request about `key`; its errors become ours."""
        client = self._client
        try:
            yield client
        except FOREIGN as error:
            raise self.failure(key, error, client) from None

    def _head(self, client: Any, key: str) -> dict[str, Any]:
        where = {"Bucket": self._bucket, "Key": self._key(key)}
        answer: dict[str, Any]
        try:
            answer = client.head_object(**where)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status not in (400, 403) or says_why(error):
                raise
            # An answer to HEAD has no body, so it doesn't say why: one to GET does.
            client.get_object(**where, Range="bytes=0-0")["Body"].close()
            raise
        return answer

    def _key(self, key: str) -> str:
        check_key(key)
        return self._prefix + key

    def _check_range(
        self, key: str, came: int | None, start: int, length: int, *, partial: bool
    ) -> None:
        """`came`: the body's length, None where the answer doesn't tell it; `partial`: whether it is a range."""
        if partial and came is not None and came < length:
            raise OriginChanged(
                f"{self.url}/{key} has {start + came} bytes where at least {start + length} were "
                "pushed; push it again"
            )
        if (came is not None and came != length) or (start and not partial):
            raise UsageError(f"{self._endpoint} ignores range requests; p2pcache needs them")

    def _probe(self) -> bool:
        key = f"{_PROBE}/{secrets.token_hex(12)}"
        try:
            version = self.put(key, b"1", expect=ABSENT)
            if not self._refuses(key, ABSENT) or not self._refuses(key, '"00000000"'):
                return False
            self.put(key, b"2", expect=version)
            return True
        except Conflict:
            return False  # it refuses also a condition that holds
        except P2PCacheError as error:
            if error.exit_code != 1:
                raise
            return False  # 400 or 501: doesn't know the headers
        finally:
            with contextlib.suppress(P2PCacheError):
                self.delete(key)

    def _proves_sums(self) -> bool:
        """Whether uploads need sums, and the storage looks at them. Tried, for many ignore them silently."""
        with self._probe_lock:
            if self._sums is None:
                self._sums = self._endpoint.startswith("http://") and self._probe_sums()
            return self._sums

    def _probe_sums(self) -> bool:
        """Both as a whole object and as a part: storage may look at the sums of one kind alone."""
        key = f"{_PROBE}/{secrets.token_hex(12)}"
        try:
            return self._proves_an_object(key) and self._proves_a_part(key)
        except (KeyError, ValueError):  # an answer without the upload's id, or a part's tag
            return False
        except P2PCacheError as error:
            if isinstance(error, NotAllowed | OriginUnavailable):
                raise
            return False  # it refuses also a right one
        finally:
            with contextlib.suppress(P2PCacheError):
                self.delete(key)

    def _proves_an_object(self, key: str) -> bool:
        where = {"Bucket": self._bucket, "Key": self._key(key), "Body": b"1"}
        with self.client_for(key) as client:
            client.put_object(**where, ChecksumCRC32=crc32_of(b"1"))
            return _damage_is_seen(client.put_object, where)

    def _proves_a_part(self, key: str) -> bool:
        calls = PartCalls(self._calls(key), lambda: None, summed=True)
        upload = calls.create()
        part = {
            "Bucket": self._bucket, "Key": self._key(key), "Body": b"1", "UploadId": upload,
            "PartNumber": 1,
        }  # fmt: skip
        proves = False
        try:
            with self.client_for(key) as client:
                seen = _damage_is_seen(client.upload_part, part)
            if seen:
                calls.complete(upload, {1: calls.part(upload, 1, bytearray(b"1"))})
                proves = True
            return proves
        finally:
            if not proves:
                with contextlib.suppress(P2PCacheError):
                    calls.abort(upload)

    def _refuses(self, key: str, expect: Expect) -> bool:
        try:
            self.put(key, b"3", expect=expect)
        except Conflict:
            return True
        return False


def _damage_is_seen(send: Callable[..., object], what: Mapping[str, object]) -> bool:
    """Whether storage refuses a body whose sum is another one."""
    try:
        send(**what, ChecksumCRC32=crc32_of(b"0"))
    except ClientError as error:
        if not came_damaged(error):
            raise
        return True
    return False


def _check_url_prefix(prefix: str) -> None:
    """Take the prefixes that S3 has, but for those that would be a mistake in a URL.

    Raises:
        UsageError: says which parts a prefix may have.
    """
    parts = prefix.split("/") if prefix else []
    for part in parts:
        strange = not part.isprintable() or part != part.strip() or any(c in "?#%\\" for c in part)
        if part in ("", ".", "..") or strange:
            raise UsageError(
                f"the prefix {prefix[:120]!a} has the part {part[:120]!a}; a part isn't empty, '.' or '..', holds "
                "none of ?#%\\, no control character, and no space at its ends: choose another prefix"
            )
    if len(prefix.encode()) > MAX_KEY_BYTES:
        raise UsageError(f"the prefix is longer than {MAX_KEY_BYTES} bytes; choose a shorter one")
