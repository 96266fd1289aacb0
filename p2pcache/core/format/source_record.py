"""Records of sources: where the blobs of a model lie that was imported in place, without a copy in the origin.

A record names configured sources and keys below them, never a URL: each agent reads from where its own operator told
it to. It is untrusted like all that the origin holds: what is read by it is proved by the manifest.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from p2pcache.core.format.chunking import MiB
from p2pcache.core.format.manifest import MAX_FILES, check_path
from p2pcache.errors import IntegrityError, InvalidManifest
from p2pcache.ids import is_digest

FORMAT = "p2pcache.sources.v1"
MAX_RECORD_BYTES = 64 * MiB  # 100,000 places of 600 bytes
MAX_PLACES = 4  # of one blob: a second source is worth something, a tenth isn't
MAX_KEY_BYTES = 1024  # as of a path in a manifest
MAX_VALIDATOR_CHARS = 1024  # an ETag has some 40
CHANGED = "changed at the source; import it again"
"""The end of the message about bytes that aren't those that were imported."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class BlobPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one blob lies."""

    source: str  # the name of a configured source
    key: str  # relative to the source's URL
    validator: str = ""  # what the source said to tell these bytes from others; "": nothing


class SourceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The places of a model's blobs, by blob id (hex), the best place first."""

    format: str
    blobs: dict[str, list[BlobPlace]]

    def with_places_of(self, other: "SourceRecord") -> "SourceRecord":
        """This record, and behind its places those of another record that lie elsewhere."""
        blobs = dict(self.blobs)
        for blob, places in other.blobs.items():
            mine = blobs.get(blob, [])
            taken = {(place.source, place.key) for place in mine}
            more = [place for place in places if (place.source, place.key) not in taken]
            blobs[blob] = [*mine, *more][:MAX_PLACES]
        return SourceRecord(FORMAT, blobs)


def is_source_name(text: str) -> bool:
    """Whether a source can be named so."""
    return _NAME.fullmatch(text) is not None


def make_record(places: Mapping[str, Iterable[BlobPlace]]) -> SourceRecord:
    """A valid record.

    Raises:
        InvalidManifest: a rule or limit of the format is broken.
    """
    record = SourceRecord(FORMAT, {blob: list(found) for blob, found in places.items()})
    _check(record)
    return record


def encode_record(record: SourceRecord) -> bytes:
    """The bytes as stored; the same record gives the same bytes.

    Raises:
        InvalidManifest: it is over the limit.
    """
    sorted_blobs = dict(sorted(record.blobs.items()))
    data = msgspec.json.encode(SourceRecord(record.format, sorted_blobs))
    if len(data) > MAX_RECORD_BYTES:
        raise InvalidManifest(
            "the record of sources is over its limit of 64 MiB: the model has too many files with long names"
        )
    return data


def decode_record(data: bytes) -> SourceRecord:
    """Parse untrusted bytes.

    Raises:
        IntegrityError: not a record of this format.
    """
    # Each blob opens a list and each place an object, so that this bounds what the decoder makes.
    if (
        len(data) > MAX_RECORD_BYTES
        or data.count(b"[") > MAX_FILES
        or data.count(b"{") > MAX_FILES * MAX_PLACES + 2
    ):
        raise IntegrityError("a record of sources is over its limits; import the model again")
    try:
        record = msgspec.json.decode(data, type=SourceRecord)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise IntegrityError(f"not a record of sources of format {FORMAT}: {error}") from None
    _check(record)
    return record


def check_source_key(key: str) -> None:
    """Refuse a key that isn't a relative, normalised path.

    Raises:
        InvalidManifest: says which rule is broken.
    """
    check_path(key)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidManifest(f"the key {key[:80]!a} is too long")


def _check(record: SourceRecord) -> None:
    if record.format != FORMAT:
        raise InvalidManifest(
            f"a record of sources of format {record.format[:80]!a} isn't understood; upgrade p2pcache"
        )
    if len(record.blobs) > MAX_FILES:
        raise InvalidManifest(f"a record of over {MAX_FILES:,} blobs is over the limit")
    for blob, places in record.blobs.items():
        if not is_digest(blob) or not 1 <= len(places) <= MAX_PLACES:
            raise InvalidManifest(f"a record of sources has a wrong entry for {blob[:80]!a}")
        for place in places:
            if not is_source_name(place.source):
                raise InvalidManifest(f"{place.source[:80]!a} can't be the name of a source")
            check_source_key(place.key)
            if len(place.validator) > MAX_VALIDATOR_CHARS or not place.validator.isprintable():
                raise InvalidManifest(f"the validator of {place.key[:80]!a} is wrong")
