"""Repositories of a Hugging Face hub as source: `hf://`, or `hf://org` for those of one owner.

A place is `org/repo[@revision]`; the revision is resolved to a commit, and keys are `org/repo@COMMIT/path`, so the
same key means the same bytes for ever. Files of Git LFS have a SHA-256 in the tree. Token and endpoint come from where
the hub's own client has them: HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_ENDPOINT.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote

import msgspec

from p2pcache.core.format.chunking import MiB
from p2pcache.core.format.manifest import MAX_FILES
from p2pcache.core.format.source_record import check_source_key
from p2pcache.errors import NotAllowed, NotFound, UsageError
from p2pcache.io.origins.base import Body
from p2pcache.io.origins.causes import one_line
from p2pcache.io.sources.base import SourceFile, SourceReader, changed
from p2pcache.io.sources.guarded_http import Answer, GuardedHttp, bearer, joined, shown
from p2pcache.io.sources.settings import SourceSettings

ENDPOINT = "https://huggingface.co"
MAX_PAGE_BYTES = 16 * MiB  # a page of 1,000 entries has some 300 KB
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REPO = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[^@\s]{{1,200}}))?")
_KEY = re.compile(rf"(?P<repo>{_PART}/{_PART})@(?P<commit>[0-9a-f]{{40}})/(?P<path>.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')

T = TypeVar("T")
Size = Annotated[int, msgspec.Meta(ge=0)]


class _Info(msgspec.Struct):
    sha: str


class _Lfs(msgspec.Struct):
    oid: str
    size: Size


class _Entry(msgspec.Struct):
    type: str
    path: str
    oid: str
    size: Size = 0
    lfs: _Lfs | None = None


class HubReader(SourceReader):
    """Models of a hub, at commits."""

    def __init__(self, settings: SourceSettings) -> None:
        """No request is sent yet.

        Raises:
            UsageError: a URL or an endpoint that can't be one.
            NotAllowed: a token file that can't be read.
        """
        self._owner = settings.url.removeprefix("hf://").strip("/")
        if self._owner and not re.fullmatch(_PART, self._owner):
            raise UsageError(f"not a source: {settings.url!a}; expected hf:// or hf://OWNER")
        self.url = settings.url.rstrip("/") if self._owner else "hf:/"
        self._endpoint = (settings.endpoint or os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip(
            "/"
        )
        self._http = GuardedHttp(self._endpoint, private=settings.private, secret=bearer(_token()))

    def files(self, place: str) -> Iterator[SourceFile]:
        """As `SourceReader.files`; `place` is a repository and a revision."""
        match = _REPO.fullmatch(self._full(place))
        if match is None:
            raise UsageError(
                f"not a repository: hf://{one_line(place)}; expected hf://ORG/REPO[@REVISION]"
            )
        repo, revision = match["repo"], match["revision"] or "main"
        commit = self._commit(repo, revision)
        url: str | None = (
            f"{self._endpoint}/api/models/{repo}/tree/{commit}?recursive=true&expand=false"
        )
        listed = 0
        while url is not None:
            data, answer = self._read(url, repo)
            entries = _decoded(data, list[_Entry], url)
            for entry in entries:
                if entry.type == "file":
                    listed += 1
                    yield self._file(repo, commit, entry)
            found = _NEXT.search(answer.headers.get("Link", ""))
            url = (
                self._next(answer, found[1]) if found and entries and listed <= MAX_FILES else None
            )

    def open(self, file: SourceFile, start: int, length: int) -> Body:
        """As `SourceReader.open`. A commit's bytes can't change, so the hub is asked only whether it still says so."""
        check_source_key(file.key)
        key = f"{self._owner}/{file.key}" if self._owner else file.key
        match = _KEY.fullmatch(key)
        if match is None:
            raise UsageError(f"{file.key[:80]!a} names no file at a commit of a hub")
        url = f"{self._endpoint}/{match['repo']}/resolve/{match['commit']}/{quote(match['path'])}"
        body, answer = self._http.open_range(url, start, length, file.size, {})
        tag = answer.first_headers.get("X-Linked-Etag") or answer.first_headers.get("ETag", "")
        if not tag.strip('W/"').startswith(file.validator.partition(":")[2]):
            body.close()
            changed(shown(url))
        return body

    def rest(self) -> None:
        """As `SourceReader.rest`."""
        self._http.drop_connections()

    def close(self) -> None:
        """As `SourceReader.close`."""
        self._http.drop_connections()

    def _full(self, place: str) -> str:
        return f"{self._owner}/{place}" if self._owner else place

    def _file(self, repo: str, commit: str, entry: _Entry) -> SourceFile:
        key = f"{repo}@{commit}/{entry.path}"
        key = key.removeprefix(f"{self._owner}/") if self._owner else key
        if entry.lfs is None:
            return SourceFile(entry.path, key, entry.size, f"oid:{entry.oid}")
        try:
            sha256 = bytes.fromhex(entry.lfs.oid)
        except ValueError:
            sha256 = b"?"  # no digest has this length
        return SourceFile(entry.path, key, entry.lfs.size, f"oid:{entry.lfs.oid}", sha256)

    def _commit(self, repo: str, revision: str) -> str:
        url = f"{self._endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}"
        data, _ = self._read(url, f"{repo}@{revision}")
        commit = _decoded(data, _Info, url).sha
        if not _COMMIT.fullmatch(commit):
            raise UsageError(f"{shown(url)}: the hub names no commit")
        return commit

    def _read(self, url: str, what: str) -> tuple[bytes, Answer]:
        try:
            return self._http.read_small(url, MAX_PAGE_BYTES)
        except NotFound:
            raise NotFound(f"the hub {self._endpoint} has no {what}") from None
        except NotAllowed as error:
            if "redirect" in str(error) or "private" in str(error):
                raise
            raise NotAllowed(
                f"the hub {self._endpoint} doesn't let us read {what}: it is gated, private or missing; set HF_TOKEN "
                "of somebody who may"
            ) from None

    def _next(self, answer: Answer, link: str) -> str:
        """The next page, which must be the same hub's."""
        url = joined(answer.url, link)
        if not url.startswith(f"{self._endpoint}/api/models/"):
            raise NotAllowed(
                f"the hub {self._endpoint} sends us to {shown(url)} for the rest of a list"
            )
        return url


def _decoded(data: bytes, kind: type[T], url: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise UsageError(f"{shown(url)} doesn't answer as a hub does") from None


def _token() -> str:
    """The token that the hub's own client would send."""
    if token := os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return token.strip()
    home = os.environ.get("HF_HOME") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    )
    path = Path(os.environ.get("HF_TOKEN_PATH") or Path(home) / "token")
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        raise NotAllowed(f"the hub's token file {path} can't be read") from None
