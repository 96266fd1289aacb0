"""Containers of Azure Blob Storage as source: `az://container[/prefix]`.

Credentials stand where Azure's own tools have them: AZURE_STORAGE_CONNECTION_STRING, or the account's name with a key
or a SAS token. Where there is neither, azure-identity (the extra `azure`) finds an identity of Entra ID: a service
principal, a workload, a managed identity, or who is logged in with the Azure CLI.
"""

import base64
import binascii
import hashlib
import hmac
import importlib
import os
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from p2pcache.core.format.chunking import MiB
from p2pcache.core.format.source_record import check_source_key
from p2pcache.errors import NotAllowed, NotFound, OriginChanged, OriginUnavailable, UsageError
from p2pcache.io import redaction
from p2pcache.io.origins.base import Body
from p2pcache.io.sources.base import SourceFile, SourceReader, changed
from p2pcache.io.sources.guarded_http import Answer, GuardedHttp, length_of, shown
from p2pcache.io.sources.settings import SourceSettings

VERSION = "2021-08-06"  # of Azure's protocol
SCOPE = "https://storage.azure.com/.default"
PAGE_ENTRIES = 5000  # as many as Azure gives at once
MAX_PAGE_BYTES = 64 * MiB  # an entry of the list has some 1,000 bytes
MAX_PAGES = 10_000  # also of empty ones, which Azure may send
_CONTAINER = re.compile(r"[a-z0-9$][a-z0-9-]{2,62}")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")


class AzureReader(SourceReader):
    """Blobs below one prefix of one container. A validator is the blob's ETag."""

    def __init__(self, settings: SourceSettings) -> None:
        """Find credentials; no request is sent yet.

        Raises:
            UsageError: a URL or endpoint that isn't understood, or no account is named.
            NotAllowed: credentials that can't be right.
        """
        container, _, prefix = settings.url.removeprefix("az://").rstrip("/").partition("/")
        if not _CONTAINER.fullmatch(container):
            raise UsageError(
                f"not a container's URL: {settings.url!a}; expected az://CONTAINER[/PREFIX]"
            )
        self.url = f"az://{container}" + (f"/{prefix}" if prefix else "")
        self._prefix = f"{prefix}/" if prefix else ""
        account = _Account(os.environ)
        endpoint = (settings.endpoint or account.endpoint).rstrip("/")
        self._http = _AzureHttp(endpoint, self.url, account, private=settings.private)
        self._base = f"{endpoint}/{container}"

    def files(self, place: str) -> Iterator[SourceFile]:
        """As `SourceReader.files`; `place` is a prefix, or one blob."""
        if place:
            check_source_key(place)
        below = self._prefix + (f"{place}/" if place else "")
        found = False
        for name, size, tag in self._entries(below):
            path = name[len(below) :]
            if path and not path.endswith("/"):
                found = True
                yield SourceFile(path, (below + path)[len(self._prefix) :], size, _validator(tag))
        if found:
            return
        if not place:
            raise NotFound(f"{self.url} holds no blobs")
        yield self._head(place)

    def open(self, file: SourceFile, start: int, length: int) -> Body:
        """As `SourceReader.open`; the ETag is a condition of the read, and is compared."""
        check_source_key(file.key)
        where = f"{self.url}/{file.key}"
        tag = file.validator.removeprefix("etag:")
        url, condition = self._url_of(file.key), {"If-Match": tag} if tag else {}
        try:
            body, answer = self._http.open_range(url, start, length, file.size, condition)
        except (NotFound, OriginChanged):
            self._head(file.key)  # what is gone fails conditions, too
            changed(where)
        if tag and _validator(answer.headers.get("ETag", "")) != file.validator:
            body.close()
            changed(where)
        return body

    def rest(self) -> None:
        """As `SourceReader.rest`."""
        self._http.drop_connections()

    def close(self) -> None:
        """As `SourceReader.close`."""
        self._http.drop_connections()

    def _head(self, key: str) -> SourceFile:
        """The blob of exactly this key.

        Raises:
            NotFound: there is none.
        """
        where = f"{self.url}/{key}"
        answer = self._http.ask("HEAD", self._url_of(key))
        answer.raw.close()
        if answer.status == 404:
            raise NotFound(f"{where} doesn't exist")
        size = length_of(answer.headers)
        if answer.status != 200 or size is None:
            raise OriginUnavailable(f"{where}: the store answers {answer.status}")
        tag = _validator(answer.headers.get("ETag", ""))
        return SourceFile(key.rpartition("/")[2], key, size, tag)

    def _url_of(self, key: str) -> str:
        return f"{self._base}/{quote(self._prefix + key)}"

    def _entries(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        """Name, size and ETag of all that is below a prefix, page by page."""
        marker = ""
        for _ in range(MAX_PAGES):
            query = {
                "restype": "container", "comp": "list", "prefix": prefix, "marker": marker,
                "maxresults": str(PAGE_ENTRIES),
            }  # fmt: skip
            asked = urlencode({name: text for name, text in query.items() if text}, quote_via=quote)
            url = f"{self._base}?{asked}"
            try:
                data, _ = self._http.read_small(url, MAX_PAGE_BYTES)
            except NotFound:
                raise NotFound(f"there is no container {self._base}") from None
            try:
                # Expat itself refuses entities that grow, and the size has a limit.
                page = ET.fromstring(data)  # noqa: S314
                yield from [_entry(blob) for blob in page.iterfind("Blobs/Blob")]
            except (ET.ParseError, ValueError):
                raise UsageError(f"{shown(url)} doesn't answer as Azure does") from None
            marker = page.findtext("NextMarker") or ""
            if not marker:
                return
        raise UsageError(f"{self.url}: the list doesn't end after {MAX_PAGES:,} pages")


class _Account:
    """A storage account, and who we are there. Thread-safe; blocking."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Look into the environment; nothing is asked yet.

        Raises:
            UsageError: it names no account, or azure-identity is needed and isn't installed.
            NotAllowed: a key that can't be one.
        """
        words = dict(
            part.partition("=")[::2]
            for part in environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
        )

        def first(word: str, *names: str) -> str:
            found = [environ[name] for name in names if environ.get(name)]
            return (words.get(word) or (found[0] if found else "")).strip()

        self.name = first("AccountName", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
        key = first("AccountKey", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY")
        sas = first("SharedAccessSignature", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
        suffix = words.get("EndpointSuffix") or "core.windows.net"
        self.endpoint = words.get("BlobEndpoint") or f"https://{self.name}.blob.{suffix}"
        if not _ACCOUNT.fullmatch(self.name) and "BlobEndpoint" not in words:
            raise UsageError("az:// needs the account's name: set AZURE_STORAGE_ACCOUNT_NAME")
        try:
            self._key = base64.b64decode(key, validate=True)
        except binascii.Error:
            raise NotAllowed(
                "AZURE_STORAGE_ACCOUNT_KEY isn't the key of a storage account (base64)"
            ) from None
        self.sas = sas.removeprefix("?")
        redaction.keep(key, dict(parse_qsl(self.sas)).get("sig"))
        self._identity: Any = None
        if not (key or sas):
            self._identity, self._errors = _identity()
        self._lock = threading.Lock()

    def secret(self, method: str, url: str, headers: Mapping[str, str]) -> str:
        """The header `Authorization` for a request; "": its URL is signed.

        Raises:
            NotAllowed: no identity is found, or it gets no token.
        """
        if self._key:
            signed = hmac.new(self._key, self._text(method, url, headers).encode(), hashlib.sha256)
            return f"SharedKey {self.name}:{base64.b64encode(signed.digest()).decode()}"
        if self._identity is None:
            return ""
        try:
            with self._lock:
                token = str(self._identity.get_token(SCOPE).token)  # kept there until it ends
        except (self._errors.AzureError, OSError, ValueError) as error:  # texts may quote answers
            raise NotAllowed(
                f"Entra ID gives no token for az:// ({type(error).__name__}); set AZURE_STORAGE_ACCOUNT_KEY or "
                "AZURE_STORAGE_SAS_TOKEN, or the AZURE_* variables of an identity"
            ) from None
        redaction.keep(token)
        return f"Bearer {token}"

    def _text(self, method: str, url: str, headers: Mapping[str, str]) -> str:
        """What Azure's protocol says that the account's key signs."""
        parts = urlsplit(url)
        own = [f"{n.lower()}:{v}" for n, v in headers.items() if n.lower().startswith("x-ms-")]
        query = sorted(parse_qsl(parts.query, keep_blank_values=True))
        standard = [headers.get("If-Match", ""), "", "", headers.get("Range", "")]
        lines = [
            method, *[""] * 7, *standard, *sorted(own), f"/{self.name}{parts.path}",
            *(f"{name.lower()}:{value}" for name, value in query),
        ]  # fmt: skip
        return "\n".join(lines)


class _AzureHttp(GuardedHttp):
    """As `GuardedHttp`, with an account's credentials."""

    def __init__(self, endpoint: str, url: str, account: _Account, *, private: bool) -> None:
        super().__init__(endpoint, private=private)
        self._url = url
        self._account = account

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
            NotAllowed: Azure doesn't let us in.
        """
        now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        sent = {**(headers or {}), "x-ms-date": now, "x-ms-version": VERSION}
        secret = self._account.secret(method, url, sent)
        if self._account.sas:
            url = f"{url}{'&' if '?' in url else '?'}{self._account.sas}"
        return self.admitted(super().ask(method, url, sent, secret=secret), self._refusal)

    def _refusal(self) -> NotAllowed:
        return NotAllowed(
            f"Azure doesn't allow {self._url}; check AZURE_STORAGE_ACCOUNT_NAME and the credentials beside it"
        )


def _identity() -> tuple[Any, Any]:
    """What finds an identity, and the module of its errors."""
    try:
        identity: Any = importlib.import_module("azure.identity")
        return identity.DefaultAzureCredential(), importlib.import_module("azure.core.exceptions")
    except ImportError:
        raise UsageError(
            "az:// without AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN needs azure-identity: pip install "
            "'p2pcache[azure]'"
        ) from None


def _entry(blob: ET.Element) -> tuple[str, int, str]:
    """Name, size and ETag of an entry of a list.

    Raises:
        ValueError: it lacks one.
    """
    name = blob.find("Name")
    if name is None or not name.text:
        raise ValueError("a blob without a name")
    text = unquote(name.text) if name.get("Encoded") == "true" else name.text
    size = int(blob.findtext("Properties/Content-Length") or "")
    return text, size, blob.findtext("Properties/Etag") or blob.findtext("Properties/ETag") or ""


def _validator(tag: str) -> str:
    bare = tag.strip('"')  # quoted in some answers only
    return f'etag:"{bare}"' if bare else ""
