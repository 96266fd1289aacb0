"""HTTP to servers that an operator named, and to where they redirect, as far as that is safe.

A server of others may answer with any redirect. Each name is resolved here, and only addresses that are allowed are
connected to: so no redirect and no trick of DNS leads into this host or its private network. Credentials go to the
named server alone. Redirects from https to http are refused.
"""

import base64
import contextlib
import netrc
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, SSLError

from p2pcache.core.format.source_record import CHANGED
from p2pcache.errors import (
    NotAllowed,
    NotFound,
    OriginChanged,
    OriginUnavailable,
    P2PCacheError,
    UsageError,
)
from p2pcache.io import redaction
from p2pcache.io.http.time_limit import in_time
from p2pcache.io.origins.base import Body, OriginSettings
from p2pcache.io.origins.causes import causes, one_line
from p2pcache.io.origins.s3.body import S3Body
from p2pcache.io.sources import guarded_connections
from p2pcache.io.sources.base import NoRanges
from p2pcache.io.sources.guarded_connections import (
    Guard,
    RefusedAddress,
    guard_connections,
    site_of,
)

MAX_REDIRECTS = 5  # hubs and mirrors use two
SMALL_BODY_BYTES = 65536  # of a redirect: it is read, and the connection stays
SMALL_S = 120.0  # of a small answer: 300 KB/s for the longest list of files
FOREIGN = (HTTPError, OSError, ValueError)
_REDIRECTS = (301, 302, 303, 307, 308)


def _drop_body(raw: Any) -> None:
    """Be done with an answer whose body doesn't matter; the connection stays if little is left."""
    sock = getattr(raw.connection, "sock", None)
    length = length_of(raw.headers)
    if sock is not None and length is not None and length <= SMALL_BODY_BYTES:
        with contextlib.suppress(TimeoutError), in_time(sock, guarded_connections.HEAD_S):
            raw.drain_conn()
    else:
        raw.close()
    raw.release_conn()


def length_of(headers: Mapping[str, str]) -> int | None:
    """What an answer says of its body's length; None: nothing that makes sense."""
    text = headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


class Answer(NamedTuple):
    """The last answer of a chain of redirects; read or close `raw`."""

    url: str
    status: int
    headers: Mapping[str, str]
    raw: Any  # urllib3's response
    first_headers: Mapping[str, str]  # of the first answer: a hub tells there what the file is


class GuardedHttp:
    """Requests to one site, and to where it redirects. Thread-safe; blocking."""

    def __init__(
        self,
        url: str,
        *,
        private: bool = False,
        secret: str = "",
        limits: OriginSettings | None = None,
    ) -> None:
        """No request is sent yet.

        Args:
            url: of the site that the operator named; its path doesn't count.
            private: redirects may lead to private addresses and to this host; never to link-local ones.
            secret: the header `Authorization`, for this site alone.
            limits: times and connections.

        Raises:
            UsageError: not a URL of http or https, or with a password in it.
        """
        self.site = site_of(url)
        if "@" in urlsplit(url).netloc:
            raise UsageError("a password in a URL ends up in logs; put it into ~/.netrc")
        limits = OriginSettings() if limits is None else limits
        self._secret = secret
        guard = Guard(self.site, private=private)
        self._pools = urllib3.PoolManager(
            maxsize=limits.pool, retries=False,
            timeout=urllib3.Timeout(connect=limits.connect_timeout_s, read=limits.read_timeout_s),
            headers={"Accept-Encoding": "identity", "User-Agent": "p2pcache"},
        )  # fmt: skip
        guard_connections(self._pools, guard)

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        secret: str | None = None,
    ) -> Answer:
        """The answer behind all redirects, whatever its status. Its body isn't read yet.

        Args:
            method: of the request.
            url: of this site, or of another one.
            headers: for every site that a redirect leads to.
            secret: the header `Authorization`, for the URL's own site alone; None: this object's, for its own site.

        Raises:
            NotAllowed: a redirect, or a name, leads to where it mustn't.
            OriginUnavailable: no answer.
        """
        first: Mapping[str, str] | None = None
        own, trusted = site_of(url), True
        if secret is None:
            secret = self._secret if own == self.site else ""
        for _ in range(MAX_REDIRECTS + 1):
            site = site_of(url)
            trusted = trusted and site == own
            sent = {"Accept-Encoding": "identity", "User-Agent": "p2pcache", **(headers or {})}
            if trusted and secret:
                sent["Authorization"] = secret
            raw = self._send(method, url, sent)
            first = raw.headers if first is None else first
            place = raw.headers.get("Location")
            if raw.status not in _REDIRECTS or not place:
                return Answer(url, raw.status, raw.headers, raw, first)
            _drop_body(raw)
            target = joined(url, place)
            if site.scheme == "https" and site_of(target).scheme == "http":
                raise NotAllowed(f"{shown(url)} redirects from https to http; that isn't followed")
            url = target
        raise NotAllowed(f"{shown(url)} redirects more than {MAX_REDIRECTS} times")

    def admitted(self, answer: Answer, refusal: Callable[[], NotAllowed]) -> Answer:
        """An answer that this site gives to those that it lets in.

        Args:
            answer: of this site, or of one to which it redirects.
            refusal: the error if this site doesn't let us in.

        Raises:
            NotAllowed: `refusal`.
        """
        if answer.status in (401, 403) and site_of(answer.url) == self.site:
            answer.raw.close()
            raise refusal()
        return answer

    def read_small(
        self,
        url: str,
        limit: int,
        headers: Mapping[str, str] | None = None,
        *,
        secret: str | None = None,
    ) -> tuple[bytes, Answer]:
        """A small answer whole.

        Raises:
            P2PCacheError: a status that isn't 200, as `refusal`; over `limit` bytes (UsageError); or it is too slow.
        """
        answer = self.ask("GET", url, headers, secret=secret)
        with contextlib.closing(answer.raw):
            if answer.status != 200:
                raise refusal(answer)
            data, end = bytearray(), time.monotonic() + SMALL_S
            try:
                while piece := answer.raw.read(65536):
                    data += piece
                    if time.monotonic() > end:
                        raise OriginUnavailable(f"{shown(url)} didn't end in {SMALL_S:.0f} s")
                    if len(data) > limit:
                        raise UsageError(
                            f"{shown(url)} answers with over {limit >> 20} MiB, too much for a list"
                        )
            except FOREIGN as error:
                raise failure(error, url) from None
            return bytes(data), answer

    def open_range(
        self, url: str, start: int, length: int, size: int, headers: Mapping[str, str]
    ) -> tuple[Body, Answer]:
        """Read a range of a file of `size` bytes.

        Raises:
            OriginChanged: a condition in `headers` doesn't hold, or the file has another size.
            NoRanges: it is a part of the file, and the server sends the whole one.
            P2PCacheError: as `refusal`.
        """
        wanted = {"Range": f"bytes={start}-{start + length - 1}", **headers}
        answer = self.ask("GET", url, wanted)
        try:
            if answer.status in (412, 416):
                raise OriginChanged(f"{shown(url)} {CHANGED}")
            if answer.status not in (200, 206):
                raise refusal(answer)
            _check_range(answer, start, length, size)
        except P2PCacheError:
            answer.raw.close()
            raise
        return S3Body(shown(url), answer.raw, length, lambda error: failure(error, url),
                      counted="Content-Length" in answer.headers), answer  # fmt: skip

    def drop_connections(self) -> None:
        """Drop unused connections."""
        self._pools.clear()

    def _send(self, method: str, url: str, headers: Mapping[str, str]) -> Any:
        try:
            return self._pools.request(
                method, url, headers=headers, redirect=False, preload_content=False, retries=False
            )
        except RefusedAddress as error:
            raise NotAllowed(
                f"{shown(url)}: {error}, where sources may not lead; if it is meant, set private = true in the "
                "section of this source"
            ) from None
        except FOREIGN as error:
            raise failure(error, url) from None


def joined(url: str, place: str) -> str:
    """Where a link of a page leads.

    Raises:
        UsageError: it can't be understood.
    """
    try:
        return urljoin(url, place)
    except ValueError:
        raise UsageError(f"{shown(url)}: not an http or https URL: {one_line(place)!a}") from None


def shown(url: str) -> str:
    """A URL fit for messages: without its query, which may be a signature."""
    return one_line(url.partition("?")[0])


def refusal(answer: Answer) -> P2PCacheError:
    """The error for a status that isn't a success."""
    where, status = shown(answer.url), answer.status
    if status in (404, 410):
        return NotFound(f"{where} doesn't exist")
    if status in (401, 403, 407):
        return NotAllowed(
            f"{where} answers {status}; credentials are missing or not allowed to read it (~/.netrc, or the "
            "store's own)"
        )
    if status in (408, 425, 429) or status >= 500:
        return OriginUnavailable(f"{where} answers {status}")
    return P2PCacheError(f"{where} answers {status}")


def failure(error: Exception, url: str) -> P2PCacheError:
    """The error of our tree for one of `FOREIGN`; only its kind is shown, for its text may quote secrets."""
    where = shown(url)
    found = list(causes(error))
    for one in found:
        if isinstance(one, SSLError) or type(one).__name__ == "SSLCertVerificationError":
            why = one_line(getattr(one, "verify_message", "") or type(one).__name__)
            return NotAllowed(
                f"{where}: its certificate isn't trusted ({why}); set SSL_CERT_FILE to the file of its CA"
            )
        if isinstance(one, OSError) and one.errno and not isinstance(one, socket.gaierror):
            return OriginUnavailable(f"{where}: {os.strerror(one.errno)}")
    return OriginUnavailable(f"{where} can't be read ({type(found[-1]).__name__})")


def _check_range(answer: Answer, start: int, length: int, size: int) -> None:
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise UsageError(f"{shown(answer.url)} is sent compressed; turn that off for model files")
    if answer.status == 200:
        if start or length < size:
            raise NoRanges(
                f"{shown(answer.url)}: this server sends whole files only, never a part of one"
            )
        sent = length_of(answer.headers)
        if sent is None:
            raise UsageError(
                f"{shown(answer.url)} is sent without its length, so that its end can't be told; turn that off "
                "(chunked encoding) for model files"
            )
        if sent != size:
            raise OriginChanged(f"{shown(answer.url)} has another size: it {CHANGED}")
        return
    unit, _, rest = answer.headers.get("Content-Range", "").partition(" ")
    place, _, total = rest.partition("/")
    if unit != "bytes" or place != f"{start}-{start + length - 1}" or total not in ("*", str(size)):
        raise OriginChanged(f"{shown(answer.url)} has another size: it {CHANGED}")


def bearer(token: str) -> str:
    """The header `Authorization` with a token; "": there is none."""
    redaction.keep(token)
    return f"Bearer {token}" if token else ""


def login_of_netrc(host: str) -> str:
    """The header `Authorization` with the login that the user's netrc has for a host; "": it has none.

    Raises:
        UsageError: the file can't be read.
    """
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:
        known = netrc.netrc(str(path)).authenticators(host)
    except FileNotFoundError:
        return ""
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        raise UsageError(f"{path} can't be read; it must be a netrc file of mode 0600") from None
    if known is None:
        return ""
    user, _, password = known
    redaction.keep(password or "")
    return "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()
