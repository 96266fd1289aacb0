"""The layout under an origin's URL (docs/format.md): tags, manifests, blobs.

    p2pcache/v1/tags/<namespace>/<name>/<tag>    JSON TagRecord, changed by conditional put
    p2pcache/v1/names/<namespace>/<name>         how the name is written, if it has capitals
    p2pcache/v1/manifests/<hex>                  canonical manifest bytes
    p2pcache/v1/blobs/<hex>                      a file's bytes
    p2pcache/v1/sources/<hex>                    where a manifest's blobs lie, if they were imported in place
    p2pcache/v1/trackers/<name>                  which tracker is active (io/tenures)

A push writes blobs (or the record of their sources), then the manifest, then the tag: a reader that sees a tag can
read all of it.
"""

from collections.abc import Callable, Iterator

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import MAX_MANIFEST_BYTES, digest_of, encode
from p2pcache.core.format.source_record import (
    MAX_RECORD_BYTES,
    SourceRecord,
    decode_record,
    encode_record,
)
from p2pcache.core.format.tag_record import MAX_TAG_BYTES, NO_TAG, TagRecord, decode_tag, encode_tag
from p2pcache.errors import (
    Conflict,
    IntegrityError,
    InvalidManifest,
    NotFound,
    P2PCacheError,
    UsageError,
)
from p2pcache.ids import Ref, is_digest
from p2pcache.io.origins.base import ABSENT, Body, NoContainer, Readable
from p2pcache.io.origins.push import OpenBlob, PushResult, upload_blobs
from p2pcache.io.origins.retry import Retrying, never
from p2pcache.io.origins.spellings import claim_spelling, read_spelling

__all__ = ["OriginRepo", "PushResult", "blob_key", "manifest_key", "tag_key"]

ROOT = "p2pcache/v1"
_TAGS = f"{ROOT}/tags/"
NOWHERE = f"{ROOT}/manifests/{'0' * 64}"  # never there: asking for it shows whether storage answers
_PUT_TAG_TRIES = 20  # a forced put races only with other pushes, which are slower


WriteTag = Callable[[Ref, str, int | None], TagRecord]
"""Let a tag mean a digest if it still has that generation (None: any)."""


class OriginRepo:
    """Tags, manifests and blobs on any origin. Thread-safe; blocking."""

    def __init__(self, origin: Retrying) -> None:
        """`origin`: from `open_origin`; the repo doesn't close it."""
        self.origin = origin

    @property
    def url(self) -> str:
        """The origin's URL, without credentials."""
        return self.origin.url

    def prove(self) -> None:
        """Find out with one small request whether the storage answers us.

        Raises:
            P2PCacheError: why it can't be used: credentials, no bucket, no answer.
        """
        # Not by HEAD: its answers have no body, and a missing bucket looks like a missing object.
        try:
            self.origin.prove(NOWHERE)
        except NoContainer:
            raise
        except NotFound:
            return

    @property
    def trouble(self) -> P2PCacheError | None:
        """The error of the last request; None: it succeeded."""
        return self.origin.trouble

    def ask_again(self) -> None:
        """If there is trouble, find out with one small request whether it is over; `trouble` says so."""
        self.origin.ask_again(NOWHERE)

    # -- tags -----------------------------------------------------------------------------------

    def get_tag(self, ref: Ref) -> TagRecord:
        """The present record of `ref`'s tag (the ref's digest part is ignored).

        Raises:
            NotFound: no such tag, or deleted.
        """
        record, _ = self._tag(ref)
        if not record.digest:
            raise NotFound(
                f"no model {ref.short} at {self.url}; `p2pcache push DIR {ref.short}` makes one"
            )
        return record

    def put_tag(
        self,
        ref: Ref,
        digest: str,
        *,
        expect_generation: int | None = None,
        sole_writer: bool = False,
    ) -> TagRecord:
        """Let a tag mean `digest` ("" deletes it). If it does already nothing changes.

        Args:
            ref: names the tag.
            digest: of a manifest that is stored already.
            expect_generation: change only this generation (0: only a tag that doesn't exist yet);
                None: any generation.
            sole_writer: the caller is the only writer of tags (the tracker): allowed to write
                where the storage has no conditional put.

        Raises:
            Conflict: another generation is there.
            IntegrityError: no generation can follow the one that is there.
            UsageError: the storage can't put conditionally, and the caller isn't the sole writer.
        """
        if not sole_writer:
            self._need_conditional_put()
        for _ in range(_PUT_TAG_TRIES):
            record, version = self._tag(ref)
            if record.digest == digest:
                return record
            if expect_generation is not None and record.generation != expect_generation:
                raise self._moved(ref, record)
            wanted = record.followed_by(digest)
            expect = ABSENT if version is None else version
            try:
                self.origin.put(
                    tag_key(ref),
                    encode_tag(wanted),
                    expect=expect if self.origin.conditional_put else None,
                )
            except Conflict:
                continue  # read again: it may be the same digest, or the expected generation
            return wanted
        raise Conflict(f"{ref.short} changes faster than we can write it; try again")

    def _need_conditional_put(self) -> None:
        if not self.origin.conditional_put:
            raise UsageError(
                f"{self.url} ignores conditional writes, so two pushes could overwrite each other; "
                "push through an agent that has a tracker"
            )

    def delete_tag(self, ref: Ref, *, expect_generation: int | None = None) -> None:
        """Let a tag mean nothing. Blobs and manifest stay.

        Raises:
            Conflict: as `put_tag`.
        """
        if self._tag(ref)[0].digest:
            self.put_tag(ref, "", expect_generation=expect_generation)

    def list_tags(
        self, namespace: str | None = None, name: str | None = None
    ) -> Iterator[tuple[Ref, TagRecord]]:
        """Every tag (of a namespace, of a name) with its record, in no certain order."""
        prefix = _TAGS
        if namespace is not None:
            prefix += f"{namespace}/"
            if name is not None:
                prefix += f"{name}/"
        for info in self.origin.list(prefix):
            ref = ref_below(_TAGS, info.key)
            if ref is not None:
                record, _ = self._tag(ref)
                if record.digest:
                    yield ref, record

    def refs(self, namespace: str) -> Iterator[Ref]:
        """Every tag that was ever set in a namespace, deleted ones too, without reading the records."""
        for info in self.origin.list(f"{_TAGS}{namespace}/"):
            ref = ref_below(_TAGS, info.key)
            if ref is not None:
                yield ref

    def spelling(self, ref: Ref) -> str:
        """How the name of a model is written: as its push had it."""
        return read_spelling(self.origin, ROOT, ref) or ref.full_name

    def _tag(self, ref: Ref) -> tuple[TagRecord, str | None]:
        try:
            data, version = self.origin.get(tag_key(ref), limit=MAX_TAG_BYTES)
        except NoContainer:
            raise
        except NotFound:
            return NO_TAG, None
        try:
            return decode_tag(data), version
        except IntegrityError as error:
            raise IntegrityError(f"{self.url}/{tag_key(ref)}: {error}") from None

    def _moved(self, ref: Ref, found: TagRecord) -> Conflict:
        return Conflict(
            f"{ref.short} moved meanwhile: generation {found.generation} is blake3:{found.digest}; "
            "look at it, and push with --force to replace it"
        )

    # -- manifests ------------------------------------------------------------------------------

    def has_manifest(self, digest: str) -> bool:
        """Whether the manifest is stored."""
        return self.origin.stat(manifest_key(digest)) is not None

    def get_manifest(self, digest: str) -> bytes:
        """A manifest's bytes, proved by its digest.

        Raises:
            NotFound: no such manifest.
            InvalidManifest: other bytes are stored there.
        """
        try:
            data, _ = self.origin.get(manifest_key(digest), limit=MAX_MANIFEST_BYTES)
        except NoContainer:
            raise
        except NotFound:
            why = f"{self.url} has no manifest blake3:{digest}"
            raise NotFound(f"{why}; if it was deleted, push the model again") from None
        if digest_of(data) != digest:
            raise InvalidManifest(
                f"{self.url} holds other bytes than manifest blake3:{digest}; push the model again with --repair"
            )
        return data

    def put_manifest(self, digest: str, data: bytes, *, repair: bool = False) -> None:
        """Store a manifest. Storing the same bytes twice is fine; `repair`: write it even if it is stored."""
        found = None if repair else self.origin.stat(manifest_key(digest))
        if found is None or found.size != len(data):
            self.origin.put(manifest_key(digest), data)

    # -- blobs ----------------------------------------------------------------------------------

    def has_blob(self, blob: str, size: int) -> bool:
        """Whether the blob is stored with the right size (its bytes are proved by readers)."""
        found = self.origin.stat(blob_key(blob))
        return found is not None and found.size == size

    def stored_blobs(self) -> Iterator[tuple[str, int]]:
        """Every stored blob with its size, in no certain order."""
        prefix = f"{ROOT}/blobs/"
        for found in self.origin.list(prefix):
            yield found.key.removeprefix(prefix), found.size

    def put_blob(
        self,
        blob: str,
        source: Readable,
        size: int,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Store a blob of `size` bytes; visible as a whole or not at all."""
        if size == 0:
            self.origin.put(blob_key(blob), b"")
        else:
            self.origin.put_file(blob_key(blob), source, size, progress=progress)

    def open_blob(
        self, blob: str, start: int, length: int, cancelled: Callable[[], bool] = never
    ) -> Body:
        """Read a range of a blob; retries until it is complete, final or cancelled."""
        return self.origin.open(blob_key(blob), start, length, cancelled)

    # -- sources --------------------------------------------------------------------------------

    def sources_of(self, digest: str) -> SourceRecord | None:
        """Where a model's blobs lie; None: there is no record, or none that can be read.

        Raises:
            P2PCacheError: the origin can't be read.
        """
        return self._sources(digest)[0]

    def put_sources(self, digest: str, record: SourceRecord) -> None:
        """Note where a model's blobs lie; places elsewhere that are noted already stay behind these.

        Raises:
            Conflict: it changes faster than we can write it.
        """
        for _ in range(_PUT_TAG_TRIES):
            known, version = self._sources(digest)
            data = encode_record(record if known is None else record.with_places_of(known))
            expect = ABSENT if version is None else version
            try:
                self.origin.put(
                    source_key(digest), data, expect=expect if self.origin.conditional_put else None
                )
            except Conflict:
                continue
            return
        raise Conflict("the record of this model's sources changes faster than we can write it")

    def _sources(self, digest: str) -> tuple[SourceRecord | None, str | None]:
        try:
            data, version = self.origin.get(source_key(digest), limit=MAX_RECORD_BYTES)
        except NoContainer:
            raise
        except NotFound:
            return None, None
        try:
            return decode_record(data), version
        except IntegrityError:
            return None, version

    # -- push -----------------------------------------------------------------------------------

    def push(
        self,
        layout: Layout,
        ref: Ref,
        *,
        open_blob: OpenBlob,
        spelling: str = "",
        force: bool = False,
        repair: bool = False,
        record: SourceRecord | None = None,
        on_bytes: Callable[[int], None] | None = None,
        write_tag: WriteTag | None = None,
    ) -> PushResult:
        """Upload the missing parts of a model, then let `ref`'s tag mean it.

        Args:
            layout: of the model.
            ref: names the tag.
            open_blob: from an index into `layout.blobs` to a descriptor, which the push closes;
                asked only for blobs that are uploaded.
            spelling: how the name is to be written, from `ids.spelled`; "": in lower case.
            force: take the tag even if another push moves it meanwhile, and change how the name is written.
            repair: upload also blobs that are stored with the right size: their bytes were wrong.
            record: where the blobs lie; then it is written, and no blob is uploaded.
            on_bytes: called with the bytes that the origin has in addition (blobs that it had count at
                once); one call at a time, from several threads.
            write_tag: writes the tag if the storage can't put conditionally (the tracker does).

        Raises:
            Conflict: the tag moved meanwhile; or the name is there, written otherwise.
            IntegrityError: a file isn't what it was when it was indexed.
            UsageError: the storage can't put conditionally, and there is no `write_tag`.
        """
        if write_tag is None:
            self._need_conditional_put()  # before the upload, which may take hours
        claim_spelling(self.origin, ROOT, ref, spelling or ref.full_name, force=force)
        seen = None if force else self._tag(ref)[0].generation
        if record is not None:
            self.put_sources(layout.digest, record)
            missing = []
        else:
            missing = upload_blobs(self, layout, open_blob, progress=on_bytes, repair=repair)
        self.put_manifest(layout.digest, encode(layout.manifest), repair=repair)
        if write_tag is not None and not self.origin.conditional_put:
            tag = write_tag(ref, layout.digest, seen)
        else:
            tag = self.put_tag(ref, layout.digest, expect_generation=seen)
        uploaded = sum(layout.blobs[i].size for i in missing)
        return PushResult(layout.digest, tag.generation, uploaded, len(missing))


def tag_key(ref: Ref) -> str:
    """Key of a tag's record."""
    return f"{_TAGS}{ref.namespace}/{ref.name}/{ref.tag}"


def manifest_key(digest: str) -> str:
    """Key of a manifest."""
    return f"{ROOT}/manifests/{_hex(digest)}"


def blob_key(blob: str) -> str:
    """Key of a blob."""
    return f"{ROOT}/blobs/{_hex(blob)}"


def source_key(digest: str) -> str:
    """Key of the record that says where a model's blobs lie."""
    return f"{ROOT}/sources/{_hex(digest)}"


def _hex(digest: str) -> str:
    if not is_digest(digest):
        raise UsageError(f"not a digest: {digest[:80]!a}")
    return digest


def ref_below(prefix: str, key: str) -> Ref | None:
    """The tag that a key <prefix><namespace>/<name>/<tag> names; None for a foreign key."""
    parts = key.removeprefix(prefix).split("/")
    if len(parts) != 3:
        return None
    try:
        ref = Ref.parse(f"{parts[0]}/{parts[1]}:{parts[2]}")
    except UsageError:
        return None
    return ref if key == f"{prefix}{ref.namespace}/{ref.name}/{ref.tag}" else None
