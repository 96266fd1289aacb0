"""What operators asked to be true, as the origin has it: models to keep, and nodes to empty.

A record that is over stays, with the next generation, so that two writers never overwrite each other unseen.
"""

from typing import TypeVar

import msgspec

from p2pcache.errors import IntegrityError

MAX_RECORD_BYTES = 8192  # a record has about 200, a selector up to 1000, and its repairs about 1000
MAX_GENERATION = 2**53  # what every JSON reader holds exactly
MAX_NUMBER = 1_000_000  # of copies; more than any cluster has nodes

R = TypeVar("R", "KeepRecord", "DrainRecord")


class Repair(msgspec.Struct, frozen=True):
    """A time in which copies were missing, for people."""

    began: float  # unix seconds
    ended: float = 0.0  # 0: it goes on
    moved_bytes: int = 0  # that nodes fetched for it, from each other or from storage


class KeepRecord(msgspec.Struct, frozen=True):
    """How a model is to be kept. Unknown fields are passed over: a later release may append some."""

    generation: int = 0  # from 1; each change adds one
    copies: int = 0  # 0 without `everywhere`: it isn't kept any more
    whole: bool = False  # each copy is a complete model on one node
    everywhere: bool = False  # on each node that `nodes` chooses
    nodes: str = ""  # a selector; "": all nodes but clients
    since: float = 0.0  # unix seconds, for people
    repairs: tuple[Repair, ...] = ()  # the last that ended, the oldest first

    @property
    def lasts(self) -> bool:
        """Whether the model is to be kept."""
        return self.copies > 0 or self.everywhere


class DrainRecord(msgspec.Struct, frozen=True):
    """Whether a node is to keep nothing any more. Unknown fields are passed over."""

    generation: int = 0
    draining: bool = False
    name: str = ""  # of the node, for people
    since: float = 0.0  # unix seconds, for people

    @property
    def lasts(self) -> bool:
        """Whether the node is to be emptied."""
        return self.draining


def encode_record(record: KeepRecord | DrainRecord) -> bytes:
    """The bytes as stored."""
    return msgspec.json.encode(record)


def decode_record(data: bytes, kind: type[R]) -> R:
    """Parse untrusted bytes.

    Raises:
        IntegrityError: not a record of this kind.
    """
    try:
        record = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise IntegrityError(f"not a record of an intent: {error}") from None
    copies = record.copies if isinstance(record, KeepRecord) else 0
    if not (1 <= record.generation <= MAX_GENERATION and 0 <= copies <= MAX_NUMBER):
        raise IntegrityError("not a record of an intent: a number is out of range")
    return record
