"""The manifest of formats v1 and v1.1: the files and chunks of a model, byte for byte, and nothing about places.

A manifest is canonical JSON: the same files give the same bytes anywhere, and its BLAKE3 digest
is the model's identity. Manifests are untrusted input: `decode` accepts exactly what `encode`
would have written and refuses everything else.
"""

import itertools
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from blake3 import blake3

from p2pcache.core.format.chunking import MAX_CHUNK_BYTES, MiB
from p2pcache.errors import InvalidManifest
from p2pcache.ids import DIGEST_BYTES

FORMAT = "p2pcache.manifest.v1"
FORMAT_SHA256 = "p2pcache.manifest.v1.1"  # some file has its SHA-256
SHA256_BYTES = 32
MAX_MANIFEST_BYTES = 256 * MiB
MAX_FILES = 100_000
MAX_CHUNKS = 1_000_000
MAX_FOLDERS = 100_000  # each becomes a directory on every node
MAX_PATH_BYTES = 1024
# A manifest up to this size becomes some 100 MiB of objects at most. In a larger one files and chunks are counted
# first, since a long list of short numbers would become gigabytes.
_SMALL_BYTES = 8 * MiB
_BLOB_DOMAIN = b"p2pcache.blob.v1\n"
# Control characters could forge a terminal's output; a backslash is a separator elsewhere.
_BAD_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Chunk(NamedTuple):
    """One chunk of a file: its length in bytes and its BLAKE3 digest (32 bytes)."""

    length: int
    digest: bytes


class File(NamedTuple):
    """One file of a model.

    `lengths` and `digests` run in file order; digests are packed 32 bytes each, so that a
    manifest of a million chunks stays small in memory. `sha256` (32 bytes, or b"") is of the whole
    file: hubs and registries name files by it. No byte is proved by it.
    """

    path: str
    size: int
    lengths: "array[int]"  # array is generic only from 3.12 on
    digests: bytes
    sha256: bytes = b""

    @property
    def chunks(self) -> Iterator[Chunk]:
        """The file's chunks in order."""
        for i, length in enumerate(self.lengths):
            yield Chunk(length, self.digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES])

    @property
    def blob_id(self) -> str:
        """BLAKE3 (hex) of the canonical chunk list: the name of this file's bytes."""
        return blob_id(self.chunks)


class Manifest(NamedTuple):
    """A model's files, sorted by path."""

    files: tuple[File, ...]

    @property
    def size_bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(f.size for f in self.files)

    @property
    def chunk_count(self) -> int:
        """Chunks over all files, repeats counted."""
        return sum(len(f.lengths) for f in self.files)


class _FileRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    path: str
    size: int
    lengths: list[int]
    digests: str
    sha256: str = ""


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    files: list[_FileRecord]


class _Probe(msgspec.Struct):
    format: str = ""


_HEAD = re.compile(rb'\{"format":"p2pcache\.manifest\.v1(?:\.1)?","files":\[')
# A file in canonical text, and what stands behind it. The longest path is escaped in six times its bytes.
_FILE = re.compile(
    rb'\{"path":"(?:[^"\\]|\\.){0,%d}+","size":\d++,"lengths":\[([\d,]*+)\],' % (6 * MAX_PATH_BYTES)
    + rb'"digests":"[0-9a-f]*+"(?:,"sha256":"[0-9a-f]{64}")?\}[,\]]'
)
_DIGEST_LIST = re.compile(r'\],"digests":"([0-9a-f]*)"')
_decoder = msgspec.json.Decoder(_Record)
_encoder = msgspec.json.Encoder()


def make_file(path: str, chunks: Iterable[Chunk], sha256: bytes = b"") -> File:
    """A file of these chunks."""
    listed = list(chunks)
    lengths = array("I", (c.length for c in listed))
    return File(path, sum(lengths), lengths, b"".join(c.digest for c in listed), sha256)


def make_manifest(files: Iterable[File]) -> Manifest:
    """A validated manifest of files in any order.

    Raises:
        InvalidManifest: a path or a limit of the format is broken.
    """
    manifest = Manifest(tuple(sorted(files, key=lambda f: f.path.encode())))
    _check(manifest)
    return manifest


def blob_id(chunks: Iterable[Chunk]) -> str:
    """The id of a blob: BLAKE3 (hex) over a domain line and (length as u32 LE, digest) of each chunk."""
    hasher = blake3(_BLOB_DOMAIN)
    for length, digest in chunks:
        hasher.update(length.to_bytes(4, "little") + digest)
    return hasher.hexdigest()


def encode(manifest: Manifest) -> bytes:
    """The canonical bytes: JSON without white space, keys in the order of docs/format.md."""
    records = [
        _FileRecord(f.path, f.size, f.lengths.tolist(), f.digests.hex(), f.sha256.hex())
        for f in manifest.files
    ]
    # A model without SHA-256 keeps the digest that it has had since the first release.
    known = any(f.sha256 for f in manifest.files)
    return _encoder.encode(_Record(FORMAT_SHA256 if known else FORMAT, records))


def digest_of(encoded: bytes) -> str:
    """A model's identity: BLAKE3 (hex) of its manifest's canonical bytes."""
    return blake3(encoded).hexdigest()


def decode(encoded: bytes, expected_digest: str | None = None) -> Manifest:
    """Parse and validate untrusted manifest bytes.

    Args:
        encoded: the bytes as stored.
        expected_digest: hex; checked first when given.

    Raises:
        InvalidManifest: wrong digest, unknown version, broken rule, or not canonical.
    """
    if len(encoded) > MAX_MANIFEST_BYTES:
        raise InvalidManifest(f"manifest of {len(encoded)} bytes is over the limit of 256 MiB")
    if expected_digest is not None and digest_of(encoded) != expected_digest:
        raise InvalidManifest(
            f"manifest doesn't match its digest blake3:{expected_digest}: the stored object "
            "is corrupt; push again with --repair"
        )
    if len(encoded) > _SMALL_BYTES:
        head = _HEAD.match(encoded)
        if head is None:
            raise _unreadable(encoded, None)
        _count(encoded, head.end())
    try:
        record = _decoder.decode(encoded)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _unreadable(encoded, error) from None
    if record.format not in (FORMAT, FORMAT_SHA256):
        raise _unreadable(encoded, None)
    manifest = Manifest(tuple(_file(r) for r in record.files))
    _check(manifest)
    if encode(manifest) != encoded:
        raise InvalidManifest("manifest is not in canonical form")
    return manifest


def files_with(encoded: bytes, digests: set[str]) -> list[File]:
    """The files of a manifest that have one of these chunks, quickly: a cache looks through all of its manifests.

    Args:
        encoded: a manifest that was validated before; it isn't again. One of another release has none.
        digests: of the chunks, hex.

    Raises:
        InvalidManifest: it can't be read.
    """
    width = 2 * DIGEST_BYTES
    lists = _DIGEST_LIST.findall(encoded.decode(errors="replace"))
    parts = (
        one[at : at + width] for one in lists if len(one) > width
        for at in range(0, len(one), width)
    )  # fmt: skip
    if digests.isdisjoint(lists) and digests.isdisjoint(parts):
        return []  # nearly always: what follows costs ten times as much
    try:
        files = _decoder.decode(encoded).files
    except msgspec.MsgspecError as error:
        raise _unreadable(encoded, error) from None
    return [
        _file(record) for record in files
        if any(record.digests[at : at + width] in digests for at in range(0, len(record.digests), width))
    ]  # fmt: skip


def _count(encoded: bytes, at: int) -> None:
    """Refuse more files or chunks than a manifest may have, before they become objects.

    Other than canonical text could hide some from the count, so it is refused, too.

    Args:
        encoded: the manifest.
        at: where its first file begins.
    """
    files, chunks = 0, 0
    while encoded[at - 1 : at] != b"]":
        file = _FILE.match(encoded, at)
        if file is None:
            raise InvalidManifest("manifest is not in canonical form")
        files += 1
        chunks += encoded.count(b",", *file.span(1)) + 1
        if files > MAX_FILES or chunks > MAX_CHUNKS + files:  # an empty file has no chunk
            raise InvalidManifest(
                f"a manifest of more than {MAX_FILES:,} files or {MAX_CHUNKS:,} chunks is over the limit"
            )
        at = file.end()  # behind a comma or the list's end
    if encoded[at:] != b"}":
        raise InvalidManifest("manifest is not in canonical form")


def _unreadable(encoded: bytes, error: Exception | None) -> InvalidManifest:
    try:
        found = msgspec.json.decode(encoded, type=_Probe).format
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        found = ""
    if found.startswith("p2pcache.manifest.") and found not in (FORMAT, FORMAT_SHA256):
        return InvalidManifest(
            f"manifest format {found!r} is newer than this release understands ({FORMAT_SHA256}); "
            "upgrade p2pcache"
        )
    return InvalidManifest(f"not a manifest of format {FORMAT}: {error or found!r}")


def _file(record: _FileRecord) -> File:
    try:
        digests, sha256 = bytes.fromhex(record.digests), bytes.fromhex(record.sha256)
        lengths = array("I", record.lengths)
    except (ValueError, OverflowError, TypeError):
        raise InvalidManifest(f"file {record.path!r}: bad chunk list") from None
    return File(record.path, record.size, lengths, digests, sha256)


def _check(manifest: Manifest) -> None:
    files = manifest.files
    if not files:
        raise InvalidManifest("a model needs at least one file")
    if len(files) > MAX_FILES:
        raise InvalidManifest(f"{len(files)} files are over the limit of {MAX_FILES:,}")
    if manifest.chunk_count > MAX_CHUNKS:
        raise InvalidManifest(f"{manifest.chunk_count} chunks are over the limit of {MAX_CHUNKS:,}")
    keys = [f.path.encode("utf-8", "surrogatepass") for f in files]
    if any(a >= b for a, b in itertools.pairwise(keys)):
        raise InvalidManifest("files are not in ascending order of path")
    for file in files:
        check_path(file.path)
        _check_chunks(file)
    _check_tree(files)


def check_path(path: str) -> None:
    """Refuse a path that isn't relative and normalised, or that could leave or disturb its directory.

    Raises:
        InvalidManifest: says which rule is broken.
    """
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise InvalidManifest(f"path {path!a} is not valid UTF-8") from None
    parts = path.split("/")
    if not path or size > MAX_PATH_BYTES or any(len(p.encode()) > 255 for p in parts):
        raise InvalidManifest(f"path {path[:80]!a} is empty or too long")
    if _BAD_CHARACTERS.search(path):
        raise InvalidManifest(f"path {path!a} has a control character or a backslash")
    if any(p in ("", ".", "..") for p in parts):
        raise InvalidManifest(f"path {path!a} is absolute or not normalised")


def _check_chunks(file: File) -> None:
    lengths = file.lengths
    if len(file.digests) != DIGEST_BYTES * len(lengths):
        raise InvalidManifest(f"file {file.path!r}: digests and lengths don't pair up")
    if sum(lengths) != file.size:
        raise InvalidManifest(f"file {file.path!r}: chunk lengths don't add up to its size")
    if len(file.sha256) not in (0, SHA256_BYTES):
        raise InvalidManifest(f"file {file.path!r}: a SHA-256 has 32 bytes")
    if lengths and not 0 < min(lengths) <= max(lengths) <= MAX_CHUNK_BYTES:
        raise InvalidManifest(f"file {file.path!r}: a chunk is empty or over 64 MiB")


class _Entry(NamedTuple):
    """A file, or a folder above it."""

    end: int  # in the key of every path at or below it
    path: str
    folder: bool


def _check_tree(files: Iterable[File]) -> None:
    """Refuse two paths that some file system takes for one, a file that is also a folder, and too many folders.

    The paths are walked in the order of their folded forms, with the folders above the present one in hand. All
    folders at once could take gigabytes: each of 100,000 paths may lie 500 folders deep.
    """
    folders = 0
    above: list[_Entry] = []
    before = ""
    for key, path in sorted((_fold(file.path).replace("/", "\0"), file.path) for file in files):
        while above and not (
            before[: above[-1].end] == key[: above[-1].end]
            and key[above[-1].end : above[-1].end + 1] in ("", "\0")
        ):
            above.pop()
        known = {entry.end: entry for entry in above}
        for entry in _entries(path):
            other = known.get(entry.end)
            if other is None:
                above.append(entry)
                folders += entry.folder
            elif other.folder != entry.folder:
                file_path = entry.path if other.folder else other.path
                raise InvalidManifest(f"path {file_path!r} is both a file and a folder")
            elif other.path != entry.path or not entry.folder:
                kind = "folders" if entry.folder else "paths"
                raise InvalidManifest(
                    f"{kind} {other.path!r} and {entry.path!r} are the same name on some file systems"
                )
        above.sort()
        before = key
        if folders > MAX_FOLDERS:
            raise InvalidManifest(f"over {MAX_FOLDERS:,} folders are over the limit")


def _entries(path: str) -> Iterator[_Entry]:
    """A path's folders, the outermost first, and the file."""
    end = start = 0
    while (slash := path.find("/", start)) >= 0:
        end += len(_fold(path[start:slash]))
        yield _Entry(end, path[:slash], folder=True)
        end, start = end + 1, slash + 1
    yield _Entry(end + len(_fold(path[start:])), path, folder=False)


def _fold(path: str) -> str:
    if path.isascii():  # nearly all are; a cache of 200,000 files is folded at each start
        return path.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())
