"""Artifacts in a mounted directory as source: `oci-layout:///abs/dir`, as skopeo and ORAS write them (`oci:`, `dir:`).

A place is the directory of a layout and a tag, `DIR[:TAG][@sha256:HEX]`; a layout of one manifest needs no tag.
"""

import hashlib
import re
from collections.abc import Iterator

import msgspec

from p2pcache.core.format.oci.model_pack import MAX_MANIFEST_BYTES
from p2pcache.core.format.oci.oci_manifest import is_oci_digest, layers_of, only_manifest
from p2pcache.core.format.source_record import check_source_key
from p2pcache.errors import IntegrityError, NotFound, UsageError
from p2pcache.io.sources.base import SourceFile
from p2pcache.io.sources.directory import DirectoryReader

REF_NAME = "org.opencontainers.image.ref.name"
_PLACE = re.compile(
    r"(?P<folder>[^:@]*)(?::(?P<tag>[^:@/]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


class _Entry(msgspec.Struct):
    digest: str
    annotations: dict[str, str] | None = None


class _Index(msgspec.Struct):
    manifests: list[_Entry]


class LayoutReader(DirectoryReader):
    """Artifacts below a directory."""

    def __init__(self, url: str) -> None:
        """Open `oci-layout:///ABSOLUTE/DIRECTORY`.

        Raises:
            UsageError: another form of URL.
            NotFound: no such directory.
        """
        super().__init__(url.replace("oci-layout://", "file://", 1))
        self.url = url.rstrip("/")

    def files(self, place: str) -> Iterator[SourceFile]:
        """As `SourceReader.files`."""
        match = _PLACE.fullmatch(place)
        if match is None:
            raise UsageError(f"not a layout: {self.url}/{place[:200]!a}; expected DIR:TAG")
        folder, where = match["folder"], f"{self.url}/{place}"
        if folder:
            check_source_key(folder)
        blobs = "blobs/sha256/"
        if (self._root / folder / "index.json").is_file():
            digest = match["digest"] or self._tagged(folder, match["tag"] or "", where)
            data = self._manifest(folder, digest)
            if chosen := only_manifest(data, where):
                data = self._manifest(folder, chosen)
        else:  # skopeo's `dir:` holds one artifact
            blobs = ""
            data = self._read(_key(folder, "manifest.json"))
        for layer in layers_of(data, where):
            key = _key(folder, blobs + layer.sha256.hex())
            with self._errors(key):
                found = self._listed(layer.path, key, self._root / key)
            if found.size != layer.size:
                raise IntegrityError(
                    f"{self.url}/{key} isn't the {layer.size} bytes of {layer.path}"
                )
            yield found._replace(sha256=layer.sha256)

    def _tagged(self, folder: str, tag: str, where: str) -> str:
        """The digest of the manifest with this tag, or of the only one."""
        data = self._read(_key(folder, "index.json"))
        try:
            entries = msgspec.json.decode(data, type=_Index).manifests
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise UsageError(f"{where}: its index.json isn't that of a layout") from None
        found = {
            one.digest for one in entries if not tag or (one.annotations or {}).get(REF_NAME) == tag
        }
        if not found:
            raise NotFound(f"no artifact {where}")
        if len(found) > 1:
            raise UsageError(f"{where} holds {len(found)} artifacts; name one: DIR:TAG")
        (digest,) = found
        return digest

    def _manifest(self, folder: str, digest: str) -> bytes:
        if not is_oci_digest(digest):
            raise UsageError(f"{self.url}/{folder}: not a digest: {digest[:100]!a}")
        key = _key(folder, f"blobs/sha256/{digest.partition(':')[2]}")
        data = self._read(key)
        if digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
            raise IntegrityError(f"{self.url}/{key} holds other bytes than its name says")
        return data

    def _read(self, key: str) -> bytes:
        """A small file, which like all of them must not be a link that leads out."""
        with self._errors(key):
            size = self._listed("", key, self._root / key).size
            with (self._root / key).open("rb") as opened:
                data = opened.read(MAX_MANIFEST_BYTES + 1)
        if max(size, len(data)) > MAX_MANIFEST_BYTES:
            raise UsageError(f"{self.url}/{key}: a manifest of more than 4 MiB is over the limit")
        return data


def _key(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
