"""The record of a tenure as an object at the origin, changed by conditional put, as tags are."""

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import Iterator

from p2pcache.core.format.tenure_record import (
    MAX_RECORD_BYTES,
    TenureRecord,
    decode_record,
    encode_record,
)
from p2pcache.errors import IntegrityError, NotFound, OriginUnavailable, UsageError
from p2pcache.io.origins import OriginSettings, Retrying, open_origin
from p2pcache.io.origins.base import ABSENT, NoContainer
from p2pcache.io.origins.repo import ROOT
from p2pcache.io.tasks import Threads
from p2pcache.io.tenures.store import CALL_S

THREADS = 4  # calls that hang must not hold up the next ones
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")


class OriginTenure:
    """One object, `p2pcache/v1/trackers/NAME`."""

    def __init__(self, url: str, name: str) -> None:
        """No contact yet.

        Args:
            url: of the origin.
            name: tells this cluster from others at the same origin.

        Raises:
            UsageError: not a URL of an origin, or not a name.
        """
        self._key = f"{ROOT}/trackers/{checked_name(name)}"
        self._settings = dataclasses.replace(
            OriginSettings.from_env(), connect_timeout_s=CALL_S, read_timeout_s=CALL_S,
            retry_for_s=0.0,  # the contender decides when to try again
        )  # fmt: skip
        self._url = url
        self._threads = Threads(THREADS, name="tenure")
        self._origin: Retrying | None = None
        self.where = f"{url}/{self._key}"

    async def look(self) -> tuple[TenureRecord, str] | None:
        """As `TenureStore.look`."""
        with self._deadline():
            async with asyncio.timeout(CALL_S):
                return await self._threads.run(self._look)

    async def write(self, record: TenureRecord, expect: str | None) -> str:
        """As `TenureStore.write`."""
        with self._deadline():
            async with asyncio.timeout(CALL_S):
                return await self._threads.run(self._write, record, expect)

    def close(self) -> None:
        """As `TenureStore.close`."""
        if self._origin is not None:
            self._origin.close()

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise OriginUnavailable(f"{self.where}: no answer within {CALL_S:g} s") from None

    def _look(self) -> tuple[TenureRecord, str] | None:
        origin = self._opened()
        try:
            data, version = origin.get(self._key, limit=MAX_RECORD_BYTES)
        except NoContainer:
            raise
        except NotFound:
            return None
        try:
            return decode_record(data), version
        except IntegrityError as error:
            raise IntegrityError(f"{self.where}: {error}; delete that object") from None

    def _write(self, record: TenureRecord, expect: str | None) -> str:
        expected = ABSENT if expect is None else expect
        return self._opened().put(self._key, encode_record(record), expect=expected)

    def _opened(self) -> Retrying:
        if self._origin is None:
            origin = open_origin(self._url, self._settings)
            if not origin.conditional_put:
                raise UsageError(
                    f"{origin.url} ignores conditional writes, so it can't keep two trackers from being active at "
                    "once: use --lease kubernetes, or one tracker without --lease"
                )
            self._origin = origin
        return self._origin


def checked_name(name: str) -> str:
    """The name of a lease, fit for a key and for Kubernetes.

    Raises:
        UsageError: it isn't.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"not the name of a lease: {name[:80]!r}; use a-z, 0-9, '-' and '.'")
    return name
