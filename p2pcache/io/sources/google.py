"""Buckets of Google Cloud Storage as source: `gs://bucket[/prefix]`.

Credentials are those that Google's own clients find, by google-auth (the extra `gcs`): GOOGLE_APPLICATION_CREDENTIALS,
the file of `gcloud auth application-default login`, workload identity, the metadata server. Where they find nobody,
requests are anonymous, as for public buckets and emulators (STORAGE_EMULATOR_HOST).
"""

import importlib
import os
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from p2pcache.core.format.chunking import MiB
from p2pcache.core.format.source_record import check_source_key
from p2pcache.errors import NotAllowed, NotFound, OriginUnavailable, UsageError
from p2pcache.io import redaction
from p2pcache.io.origins.base import Body
from p2pcache.io.sources.base import SourceFile, SourceReader, changed
from p2pcache.io.sources.guarded_connections import site_of
from p2pcache.io.sources.guarded_http import Answer, GuardedHttp, shown
from p2pcache.io.sources.settings import SourceSettings

ENDPOINT = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
PAGE_ENTRIES = 1000  # as many as Google gives at once
MAX_PAGE_BYTES = 16 * MiB  # a page of 1,000 entries has some 300 KB
MAX_PAGES = 10_000  # also of empty ones, which Google may send
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_GENERATION = re.compile(r"generation:([0-9]{1,20})")

T = TypeVar("T")


class _Object(msgspec.Struct):
    name: str
    size: Annotated[int, msgspec.Meta(ge=0)]
    generation: Annotated[int, msgspec.Meta(ge=0)]
    contentEncoding: str = ""  # noqa: N815 - Google's name


class _Page(msgspec.Struct):
    items: list[_Object] = []
    nextPageToken: str = ""  # noqa: N815 - Google's name


class GoogleReader(SourceReader):
    """Objects below one prefix of one bucket. A validator is the object's generation."""

    def __init__(self, settings: SourceSettings) -> None:
        """No request is sent yet.

        Raises:
            UsageError: a URL or endpoint that isn't understood, or google-auth isn't installed.
        """
        bucket, _, prefix = settings.url.removeprefix("gs://").rstrip("/").partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise UsageError(f"not a bucket's URL: {settings.url!a}; expected gs://BUCKET[/PREFIX]")
        self.url = f"gs://{bucket}" + (f"/{prefix}" if prefix else "")
        self._prefix = f"{prefix}/" if prefix else ""
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        if emulator and "://" not in emulator:  # some of Google's clients want a scheme, some don't
            emulator = f"http://{emulator}"
        self._endpoint = (settings.endpoint or emulator or ENDPOINT).rstrip("/")
        self._bucket = bucket
        # No token goes out without TLS, nor to an emulator.
        known = site_of(self._endpoint).scheme == "https" and self._endpoint != emulator.rstrip("/")
        self._http = _GoogleHttp(
            self._endpoint, self.url, _Login() if known else None, private=settings.private
        )

    def files(self, place: str) -> Iterator[SourceFile]:
        """As `SourceReader.files`; `place` is a prefix, or one object."""
        if place:
            check_source_key(place)
        below = self._prefix + (f"{place}/" if place else "")
        found = False
        for entry in self._entries(below):
            path = entry.name[len(below) :]
            if path and not path.endswith("/"):  # that is how tools mark a folder
                found = True
                yield self._file(path, (below + path)[len(self._prefix) :], entry)
        if found:
            return
        if not place:
            raise NotFound(f"{self.url} holds no objects")
        url = f"{self._endpoint}/storage/v1/b/{self._bucket}/o/{quote(below[:-1], safe='')}"
        try:
            data, _ = self._http.read_small(url, MAX_PAGE_BYTES)
        except NotFound:
            raise NotFound(f"{self.url}/{place}: no object, and none below it") from None
        yield self._file(place.rpartition("/")[2], place, _decoded(data, _Object, url))

    def open(self, file: SourceFile, start: int, length: int) -> Body:
        """As `SourceReader.open`; the generation is a condition of the read, and is compared."""
        check_source_key(file.key)
        where = f"{self.url}/{file.key}"
        match = _GENERATION.fullmatch(file.validator)
        if match is None:
            changed(where)
        name = quote(self._prefix + file.key, safe="")
        url = f"{self._endpoint}/download/storage/v1/b/{self._bucket}/o/{name}"
        query = f"alt=media&ifGenerationMatch={match[1]}"
        try:
            body, answer = self._http.open_range(f"{url}?{query}", start, length, file.size, {})
        except NotFound:
            raise NotFound(f"{where} doesn't exist") from None
        if answer.headers.get("X-Goog-Generation") != match[1]:
            body.close()
            changed(where)
        return body

    def rest(self) -> None:
        """As `SourceReader.rest`."""
        self._http.drop_connections()

    def close(self) -> None:
        """As `SourceReader.close`."""
        self._http.drop_connections()

    def _entries(self, prefix: str) -> Iterator[_Object]:
        """All that is below a prefix, page by page."""
        token = ""
        for _ in range(MAX_PAGES):
            query = {
                "prefix": prefix, "maxResults": str(PAGE_ENTRIES), "pageToken": token,
                "fields": "items(name,size,generation,contentEncoding),nextPageToken",
            }  # fmt: skip
            asked = urlencode({name: value for name, value in query.items() if value})
            url = f"{self._endpoint}/storage/v1/b/{self._bucket}/o?{asked}"
            try:
                data, _ = self._http.read_small(url, MAX_PAGE_BYTES)
            except NotFound:
                raise NotFound(f"there is no bucket gs://{self._bucket}") from None
            page = _decoded(data, _Page, url)
            yield from page.items
            token = page.nextPageToken
            if not token:
                return
        raise UsageError(f"{self.url}: the list doesn't end after {MAX_PAGES:,} pages")

    def _file(self, path: str, key: str, entry: _Object) -> SourceFile:
        if entry.contentEncoding not in ("", "identity"):
            raise UsageError(
                f"{self.url}/{key} is stored as {entry.contentEncoding[:20]!a}, and arrives as other bytes; store it "
                "without a Content-Encoding, or leave it out with --exclude"
            )
        return SourceFile(path, key, entry.size, f"generation:{entry.generation}")


class _GoogleHttp(GuardedHttp):
    """As `GuardedHttp`, as whom Google's own clients would be."""

    def __init__(self, endpoint: str, url: str, login: "_Login | None", *, private: bool) -> None:
        super().__init__(endpoint, private=private)
        self._url = url
        self._login = login

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        secret: str | None = None,
    ) -> Answer:
        """As `GuardedHttp.ask`.

        Raises:
            NotAllowed: Google doesn't let us in.
        """
        secret, payer = self._login.headers() if self._login else ("", {})
        answer = super().ask(method, url, {**(headers or {}), **payer}, secret=secret)
        return self.admitted(answer, lambda: self._refusal("us" if secret else "strangers"))

    def _refusal(self, whom: str) -> NotAllowed:
        return NotAllowed(
            f"Google doesn't let {whom} read {self._url}; set GOOGLE_APPLICATION_CREDENTIALS, or give this machine's "
            "account the role Storage Object Viewer"
        )


class _Login:
    """Whom google-auth finds us to be. Thread-safe; blocking."""

    def __init__(self) -> None:
        """Nobody is looked for yet: that may ask the metadata server.

        Raises:
            UsageError: google-auth isn't installed.
        """
        try:
            self._auth: Any = importlib.import_module("google.auth")
            self._errors: Any = importlib.import_module("google.auth.exceptions")
            transport: Any = importlib.import_module("google.auth.transport.requests")
        except ImportError:
            raise UsageError("gs:// needs google-auth: pip install 'p2pcache[gcs]'") from None
        self._request: Any = transport.Request()
        self._lock = threading.Lock()
        self._looked = False
        self._found: Any = None

    def headers(self) -> tuple[str, dict[str, str]]:
        """The header `Authorization` ("": we are nobody), and the one that names whose quota pays, if one does.

        Raises:
            NotAllowed: credentials that can't be used.
            OriginUnavailable: no token can be had now.
        """
        with self._lock:
            try:
                if not self._looked:
                    self._found, self._looked = self._find(), True
                if self._found is None:
                    return "", {}
                if not self._found.valid:
                    self._found.refresh(self._request)
            except (self._errors.GoogleAuthError, OSError, ValueError) as error:
                kind = type(error).__name__
                if getattr(error, "retryable", False):
                    raise OriginUnavailable(f"Google gives no token now ({kind})") from None
                raise NotAllowed(
                    f"Google's credentials can't be used ({kind}); check GOOGLE_APPLICATION_CREDENTIALS, or log "
                    "in with gcloud auth application-default login"
                ) from None
            token = str(self._found.token)
            project = self._found.quota_project_id
        redaction.keep(token)
        return f"Bearer {token}", {"X-Goog-User-Project": project} if project else {}

    def _find(self) -> Any:
        try:
            return self._auth.default(scopes=[SCOPE], request=self._request)[0]
        except self._errors.DefaultCredentialsError:
            if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
                raise
            return None


def _decoded(data: bytes, kind: type[T], url: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind, strict=False)  # Google writes numbers as text
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise UsageError(f"{shown(url)} doesn't answer as Google Cloud Storage does") from None
