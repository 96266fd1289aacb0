"""Containers of Azure Blob Storage as source: `az://container[/prefix]`, with the extra `azure` (obstore).

The account and its credentials come from the environment (AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY,
AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID ..., managed identity). obstore's calls block and are made from our threads.
"""

import contextlib
import importlib
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from p2pcache.core.format.chunking import MiB
from p2pcache.core.format.source_record import check_source_key
from p2pcache.errors import NotAllowed, NotFound, OriginUnavailable, UsageError
from p2pcache.io.origins.base import Body, OriginSettings
from p2pcache.io.origins.causes import one_line
from p2pcache.io.sources.base import SourceFile, SourceReader, changed
from p2pcache.io.sources.settings import SourceSettings

RANGE_BYTES = 16 * MiB  # of one request, which has one limit of time for all of its body
RANGE_S = 60.0  # for such a request: 270 KB/s
_CONTAINER = re.compile(r"[a-z0-9$][a-z0-9-]{2,62}")


class AzureReader(SourceReader):
    """Blobs below one prefix of one container."""

    def __init__(self, settings: SourceSettings) -> None:
        """Find credentials; no request is sent yet.

        Raises:
            UsageError: a URL that isn't understood, or obstore isn't installed.
            NotAllowed: credentials that can't be right.
        """
        container, _, prefix = settings.url.removeprefix("az://").rstrip("/").partition("/")
        if not _CONTAINER.fullmatch(container):
            raise UsageError(
                f"not a container's URL: {settings.url!r}; expected az://CONTAINER[/PREFIX]"
            )
        try:
            self._obstore: Any = importlib.import_module("obstore")
            store: Any = importlib.import_module("obstore.store")
        except ModuleNotFoundError:
            raise UsageError("az:// needs obstore: pip install 'p2pcache[azure]'") from None
        self._errors: Any = importlib.import_module("obstore.exceptions")
        self.url = f"az://{container}" + (f"/{prefix}" if prefix else "")
        limits = OriginSettings()
        with self._translated(""):
            self._store = store.AzureStore(
                container, prefix=prefix or None,
                config={"endpoint": settings.endpoint} if settings.endpoint else {},
                client_options={
                    "allow_http": settings.endpoint.startswith("http://"), "timeout": f"{RANGE_S:.0f}s",
                    "connect_timeout": f"{limits.connect_timeout_s:.0f}s",
                },
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=RANGE_S)},
            )  # fmt: skip

    def files(self, place: str) -> Iterator[SourceFile]:
        """As `SourceReader.files`; `place` is a prefix, or one blob."""
        if place:
            check_source_key(place)
        found = False
        with self._translated(place):
            for page in self._obstore.list(self._store, prefix=place or None):
                for entry in page:
                    key = str(entry["path"])
                    path = key[len(place) + 1 :] if place else key
                    if path:
                        found = True
                        yield SourceFile(path, key, int(entry["size"]), _validator(entry))
        if found:
            return
        with self._translated(place):
            entry = self._obstore.head(self._store, place or "/")
        name = place.rpartition("/")[2]
        yield SourceFile(name, place, int(entry["size"]), _validator(entry))

    def open(self, file: SourceFile, start: int, length: int) -> Body:
        """As `SourceReader.open`; the ETag is a condition of each request."""
        check_source_key(file.key)
        return _RangesBody(self, file, start, length)

    def read_range(self, file: SourceFile, start: int, end: int) -> Iterator[memoryview]:
        """The bytes [start, end) of a file, in pieces.

        Raises:
            OriginChanged: it is another blob by now.
            P2PCacheError: the store refuses us, or doesn't answer.
        """
        options: dict[str, Any] = {"range": (start, end)}
        if file.validator:
            options["if_match"] = file.validator.removeprefix("etag:")
        with self._translated(file.key):
            got = self._obstore.get(self._store, file.key, options=options)
            if int(got.meta["size"]) != file.size or _validator(got.meta) != file.validator:
                changed(f"{self.url}/{file.key}")
            for piece in got.stream():
                yield memoryview(piece)

    def close(self) -> None:
        """Nothing is held open by us."""

    @contextlib.contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        """Turn obstore's errors into ours; their texts quote answers, so only their kinds are shown."""
        what = f"{self.url}/{key}" if key else self.url
        errors = self._errors
        other = False
        try:
            yield
        except FileNotFoundError:
            raise NotFound(f"{what} doesn't exist") from None
        except errors.PreconditionError:
            other = True  # raised below: its text may quote a signature, and mustn't be our error's context
        except (errors.PermissionDeniedError, errors.UnauthenticatedError):
            raise NotAllowed(
                f"Azure doesn't allow {what}; check AZURE_STORAGE_ACCOUNT_NAME and the credentials beside it"
            ) from None
        except (errors.UnknownConfigurationKeyError, ValueError) as error:
            raise UsageError(
                f"{what}: {one_line(type(error).__name__)}; check the AZURE_* variables"
            ) from None
        except (errors.BaseError, OSError) as error:
            raise OriginUnavailable(f"{what} can't be read ({type(error).__name__})") from None
        if other:
            with self._translated(key):
                self._obstore.head(self._store, key)  # what is gone fails conditions, too
            changed(what)


class _RangesBody(Body):
    """A range, by as many requests as it takes."""

    def __init__(self, reader: AzureReader, file: SourceFile, start: int, length: int) -> None:
        self._reader = reader
        self._file = file
        self._next = start
        self._end = start + length
        self._pieces: Iterator[memoryview] = iter(())
        self._piece = memoryview(b"")
        self._range_end = start

    def readinto(self, buffer: memoryview) -> int:
        if self._next == self._end:
            return 0
        while not self._piece:
            if self._next == self._range_end:
                self._range_end = min(self._next + RANGE_BYTES, self._end)
                self._pieces = self._reader.read_range(self._file, self._next, self._range_end)
            piece = next(self._pieces, None)
            if piece is None:
                raise OriginUnavailable(
                    f"{self._reader.url}/{self._file.key}: the body ended early"
                )
            self._piece = piece
        count = min(len(self._piece), len(buffer), self._end - self._next)
        buffer[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        self._next += count
        return count

    def close(self) -> None:
        self._pieces, self._piece = iter(()), memoryview(b"")


def _validator(entry: Any) -> str:
    tag = str(entry["e_tag"] or "").strip('"')  # quoted in some answers only
    return f'etag:"{tag}"' if tag else ""
