"""The contract of stores for the record of a tenure (`core.format.tenure_record`)."""

from typing import Protocol

from p2pcache.core.format.tenure_record import TenureRecord

# For one call: a renewal that fails can be repeated twice before the tenure is over.
CALL_S = 2.0


class TenureStore(Protocol):
    """One record, changed by comparison. A call that raises anything but `Conflict` may be carried out later."""

    where: str
    """For people: what the record lies in."""

    async def look(self) -> tuple[TenureRecord, str] | None:
        """The record and its version; None: there is none.

        Raises:
            UsageError: this store can't keep a record, now or ever.
            P2PCacheError: it can't be read.
        """

    async def write(self, record: TenureRecord, expect: str | None) -> str:
        """Replace the record; returns the new version.

        Args:
            record: the new one.
            expect: version of the one that is replaced; None: there must be none.

        Raises:
            Conflict: it has another version.
            P2PCacheError: it can't be written.
        """

    def close(self) -> None:
        """Let go of connections."""
