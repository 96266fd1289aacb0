"""The record that says which tracker is active, as a store has it."""

import msgspec

from p2pcache.errors import IntegrityError

MAX_RECORD_BYTES = 4096  # a record has about 200
MAX_URL = 200  # characters; what a close frame and a log line hold
MAX_TTL_S = 120.0  # of a record of another release: no store makes us wait for longer
MAX_GENERATION = 2**53  # what every JSON reader holds exactly


class TenureRecord(msgspec.Struct, frozen=True):
    """Who is active, as the store has it. Unknown fields are passed over: a later release may append some."""

    holder: str  # random, of one process; "": given back
    url: str  # where agents and people reach the holder
    generation: int  # of the tenure; grows with each holder
    renewal: int  # grows with each write of the holder
    ttl_s: float


def encode_record(record: TenureRecord) -> bytes:
    """The bytes as stored."""
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> TenureRecord:
    """Parse untrusted bytes.

    Raises:
        IntegrityError: not a record of a tenure.
    """
    try:
        record = msgspec.json.decode(data, type=TenureRecord)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise IntegrityError(f"not the record of an active tracker: {error}") from None
    return checked(record)


def checked(record: TenureRecord) -> TenureRecord:
    """A record whose values are within their limits.

    Raises:
        IntegrityError: one isn't.
    """
    numbers = 0 <= record.generation <= MAX_GENERATION and 0 <= record.renewal <= MAX_GENERATION
    texts = len(record.holder) <= MAX_URL and len(record.url) <= MAX_URL
    if not (numbers and texts and 0 < record.ttl_s <= MAX_TTL_S and record.url.isprintable()):
        raise IntegrityError("not the record of an active tracker: a value is out of range")
    return record
