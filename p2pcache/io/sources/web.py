"""Files of a web server as source: `https://host[/path]`.

A place is a directory (it ends with a slash in the URL: its index is read, HTML or JSON as nginx and Apache write
them), a list (`SHA256SUMS`, or a name that ends in `.sha256` or `.list`: a line a file, as sha256sum writes them), or
one file. A file of a list lies beside the list or below it.
"""

import html.parser
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote, urljoin, urlsplit

import msgspec

from p2pcache.core.format.chunking import MiB
from p2pcache.core.format.manifest import MAX_FILES
from p2pcache.core.format.source_record import check_source_key
from p2pcache.errors import InvalidManifest, NotFound, UsageError
from p2pcache.io.origins.base import Body
from p2pcache.io.sources.base import SourceFile, SourceReader, changed
from p2pcache.io.sources.guarded_connections import site_of
from p2pcache.io.sources.guarded_http import (
    GuardedHttp,
    length_of,
    login_of_netrc,
    refusal,
    shown,
)
from p2pcache.io.sources.settings import SourceSettings

MAX_LIST_BYTES = 32 * MiB  # 100,000 lines of 300 bytes
MAX_FOLDERS = 1000  # each is a request
_LINE = re.compile(r"(?:(?P<sha256>[0-9a-fA-F]{64})[ \t]+\*?)?(?P<name>\S.*)")


class _JsonEntry(msgspec.Struct):
    name: str
    type: str = "file"


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the targets of links."""
        if tag == "a" and len(self.found) <= MAX_FILES:
            self.found += [value for name, value in attrs if name == "href" and value]


class WebReader(SourceReader):
    """Files below one URL."""

    def __init__(self, settings: SourceSettings) -> None:
        """No request is sent yet.

        Raises:
            UsageError: a URL that can't be a source.
        """
        parts = urlsplit(settings.url)
        if parts.query or parts.fragment:
            raise UsageError(f"the URL of a source has no query: {shown(settings.url)}")
        login = login_of_netrc(site_of(settings.url).host)
        self._http = GuardedHttp(settings.url, private=settings.private, secret=login)
        self.url = settings.url.rstrip("/")

    def files(self, place: str) -> Iterator[SourceFile]:
        """As `SourceReader.files`."""
        name = place.rpartition("/")[2]
        if name == "SHA256SUMS" or name.endswith((".sha256", ".list")):
            yield from self._of_list(place)
            return
        if place:
            # A web server says by a redirect, or by an index, that it is a directory.
            found = self._asked(place, "")
            if found is not None:
                yield found._replace(path=name)
                return
        yield from self._below(f"{place}/" if place else "")

    def open(self, file: SourceFile, start: int, length: int) -> Body:
        """As `SourceReader.open`; the validator is a condition of the read, and is compared."""
        check_source_key(file.key)
        url = self._url_of(file.key)
        kind, _, value = file.validator.partition(":")
        conditions = {"etag": "If-Match", "date": "If-Unmodified-Since"}
        headers = {conditions[kind]: value} if kind in conditions else {}
        body, answer = self._http.open_range(url, start, length, file.size, headers)
        if file.validator and _validator(answer.headers) != file.validator:
            body.close()
            changed(shown(url))
        return body

    def rest(self) -> None:
        """As `SourceReader.rest`."""
        self._http.drop_connections()

    def close(self) -> None:
        """As `SourceReader.close`."""
        self._http.drop_connections()

    def _url_of(self, key: str) -> str:
        return f"{self.url}/{quote(key)}"

    def _asked(self, key: str, sha256: str) -> SourceFile | None:
        """What the server says of one file; None: it is a directory."""
        check_source_key(key)
        url = self._url_of(key)
        answer = self._http.ask("HEAD", url)
        answer.raw.close()
        if answer.status != 200:
            raise refusal(answer)
        if urlsplit(answer.url).path.endswith("/"):
            return None
        size = length_of(answer.headers)
        if size is None:
            raise UsageError(f"{shown(url)}: the server doesn't say its size")
        return SourceFile("", key, size, _validator(answer.headers), bytes.fromhex(sha256))

    def _of_list(self, place: str) -> Iterator[SourceFile]:
        check_source_key(place)
        data, _ = self._http.read_small(self._url_of(place), MAX_LIST_BYTES)
        folder = place.rpartition("/")[0]
        lines = data.decode("utf-8", "replace").splitlines()
        if len(lines) > MAX_FILES:
            raise UsageError(f"{self.url}/{place} lists more than {MAX_FILES:,} files")
        for line in lines:
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            match = _LINE.fullmatch(text)
            assert match is not None, "a line with a character matches"
            path = self._inside(
                match["name"], f"{self.url}/{quote(folder)}/" if folder else f"{self.url}/"
            )
            key = f"{folder}/{path}" if folder else path
            found = self._asked(key, match["sha256"] or "")
            if found is None:
                raise UsageError(f"{self.url}/{place} lists {path!a}, which is a directory")
            yield found._replace(path=path)

    def _inside(self, name: str, base: str) -> str:
        """The path, relative to `base`, of a file that a list names by path or URL.

        Raises:
            UsageError: it lies elsewhere.
        """
        if "://" not in name:
            return name.removeprefix("./")
        if not name.startswith(base):
            raise UsageError(
                f"{shown(name)} lies outside of {base}; a list names files beside it or below it"
            )
        return unquote(name[len(base) :])

    def _below(self, top: str) -> Iterator[SourceFile]:
        """The files of a directory and its directories, as their indexes list them."""
        pending, seen = [top], 0
        while pending:
            folder = pending.pop()
            seen += 1
            if seen > MAX_FOLDERS:
                raise UsageError(f"{self.url}/{top} has more than {MAX_FOLDERS:,} directories")
            for name in self._index(folder):
                if name.endswith("/"):
                    pending.append(folder + name)
                    continue
                found = self._asked(folder + name, "")
                if found is None:
                    pending.append(f"{folder}{name}/")
                else:
                    yield found._replace(path=(folder + name)[len(top) :])

    def _index(self, folder: str) -> list[str]:
        """The names in a directory; those of directories end with a slash."""
        if folder:
            check_source_key(folder.rstrip("/"))
        url = self._url_of(folder)
        data, answer = self._http.read_small(url, MAX_LIST_BYTES)
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            try:
                entries = msgspec.json.decode(data, type=list[_JsonEntry])
            except (msgspec.MsgspecError, RecursionError):
                raise UsageError(
                    f"{shown(url)} answers with JSON that is no index of files"
                ) from None
            return [_name(e.name) + ("/" if e.type == "directory" else "") for e in entries]
        if kind == "text/html":
            links = _Links()
            links.feed(data.decode("utf-8", "replace"))
            return list(dict.fromkeys(filter(None, (_child(link, url) for link in links.found))))
        raise NotFound(
            f"{shown(url)} has no index of files; name a list of them (SHA256SUMS), or let the server write indexes"
        )


def _child(link: str, url: str) -> str:
    """The name that a link of an index gives; "": it leads elsewhere (up, a sorting, another site)."""
    try:
        target, here = urlsplit(urljoin(url, link)), urlsplit(url)
    except ValueError:
        return ""
    if target.query or target.netloc != here.netloc or not target.path.startswith(here.path):
        return ""
    name = unquote(target.path[len(here.path) :])
    bare = name.removesuffix("/")
    return name if bare and "/" not in bare else ""


def _name(text: str) -> str:
    if not text or "/" in text:
        raise InvalidManifest(f"an index lists {text[:80]!a}, which is no name")
    return text


def _validator(headers: Mapping[str, str]) -> str:
    tag = headers.get("ETag", "")
    if tag.startswith('"'):  # a weak one may stay when bytes change
        return f"etag:{tag}"
    date = headers.get("Last-Modified", "")
    return f"date:{date}" if date else ""
