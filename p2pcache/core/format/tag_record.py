"""Tag records: which manifest a name means at the origin, and since which generation.

A deleted tag keeps a record without a digest, so that its generation never falls. Agents refuse a generation below the
one they have seen (rollback protection as in The Update Framework), so they would refuse a tag that began at 1 again.
"""

import contextlib

import msgspec

from p2pcache.errors import IntegrityError
from p2pcache.ids import is_digest

MAX_TAG_BYTES = 4096  # a record has about 200
MAX_GENERATION = 2**53  # what every JSON reader holds exactly
_REMEDY = (
    "it is damaged, or somebody wrote it by hand: push another tag, or delete this one's record in the storage, "
    "push again and pull with --force-generation"
)


class TagRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tag at the origin."""

    digest: str  # hex, of the manifest; "": the tag is deleted
    generation: int  # from 1; each change adds one
    previous: str = ""  # the digest before this one, "" if none

    def followed_by(self, digest: str) -> "TagRecord":
        """The record that replaces this one.

        Raises:
            IntegrityError: the generation is the last one.
        """
        if self.generation >= MAX_GENERATION:
            raise IntegrityError(
                f"the tag is at the last generation ({MAX_GENERATION}), which no pushes reach; {_REMEDY}"
            )
        return TagRecord(digest, self.generation + 1, self.digest)


class _Newer(msgspec.Struct):
    """The fields that the records of all releases have."""

    digest: str
    generation: int


NO_TAG = TagRecord("", 0)
"""The record before a tag's first one."""


def encode_tag(record: TagRecord) -> bytes:
    """The bytes as stored."""
    return msgspec.json.encode(record)


def decode_tag(data: bytes) -> TagRecord:
    """Parse untrusted bytes.

    Raises:
        IntegrityError: not a tag record of this format.
    """
    try:
        record = msgspec.json.decode(data, type=TagRecord)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _unreadable(data, error) from None
    digests = all(d == "" or is_digest(d) for d in (record.digest, record.previous))
    if not digests or not 1 <= record.generation <= MAX_GENERATION:
        raise IntegrityError(f"not a tag record: a digest or generation is out of range; {_REMEDY}")
    return record


def _unreadable(data: bytes, error: Exception) -> IntegrityError:
    with contextlib.suppress(msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        msgspec.json.decode(data, type=_Newer)
        return IntegrityError(
            f"the tag was written by a newer release ({error}); upgrade p2pcache on this node"
        )
    return IntegrityError(f"not a tag record: {error}; {_REMEDY}")
