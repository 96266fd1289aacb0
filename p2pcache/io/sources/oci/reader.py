"""Artifacts of a registry as source: `oci://HOST[:PORT][/PART]`.

A place is `repository[:tag][@sha256:HEX]`; the tag is resolved once, and keys are `repository@sha256:HEX` of a layer,
so the same key means the same bytes for ever.
"""

import hashlib
import re
from collections.abc import Iterator

from p2pcache.core.format.oci.model_pack import MAX_MANIFEST_BYTES
from p2pcache.core.format.oci.oci_manifest import ACCEPT, is_oci_digest, layers_of, only_manifest
from p2pcache.core.format.source_record import check_source_key
from p2pcache.errors import IntegrityError, NotFound, UsageError
from p2pcache.io.origins.base import Body
from p2pcache.io.origins.causes import one_line
from p2pcache.io.sources.base import SourceFile, SourceReader
from p2pcache.io.sources.oci.registry_http import RegistryHttp
from p2pcache.io.sources.settings import SourceSettings

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = rf"{_PART}(?:/{_PART})*"
_PLACE = re.compile(
    rf"(?P<name>{_NAME})(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?"
)
_KEY = re.compile(rf"(?P<name>{_NAME})@(?P<digest>sha256:[0-9a-f]{{64}})")
_URL = re.compile(
    rf"oci://(?P<host>[A-Za-z0-9.-]+(?::\d{{1,5}})?|\[[0-9a-f:]+\](?::\d{{1,5}})?)(?P<part>/{_NAME})?/?"
)


class RegistryReader(SourceReader):
    """Artifacts below one URL of a registry."""

    def __init__(self, settings: SourceSettings) -> None:
        """No request is sent yet.

        Raises:
            UsageError: a URL that isn't understood.
        """
        match = _URL.fullmatch(settings.url)
        if match is None:
            raise UsageError(
                f"not a registry: {one_line(settings.url)!a}; expected oci://HOST[:PORT][/PART]"
            )
        self.url = settings.url.rstrip("/")
        self._part = f"{match['part'][1:]}/" if match["part"] else ""
        self._http = RegistryHttp(match["host"], private=settings.private)

    def files(self, place: str) -> Iterator[SourceFile]:
        """As `SourceReader.files`; `place` is a repository with a tag or a digest."""
        match = _PLACE.fullmatch(place)
        if match is None:
            raise UsageError(
                f"not an artifact: {self.url}/{one_line(place)}; expected REPOSITORY:TAG or REPOSITORY@sha256:HEX"
            )
        name = match["name"]
        where = f"{self.url}/{place}"
        data = self._manifest(name, match["digest"] or match["tag"] or "latest")
        if chosen := only_manifest(data, where):
            data = self._manifest(name, chosen)
        for layer in layers_of(data, where):
            yield SourceFile(
                layer.path, f"{name}@{layer.digest}", layer.size, layer.digest, layer.sha256
            )

    def open(self, file: SourceFile, start: int, length: int) -> Body:
        """As `SourceReader.open`. A digest's bytes can't change; what comes is proved by the model's manifest."""
        check_source_key(file.key)
        match = _KEY.fullmatch(file.key)
        if match is None:
            raise UsageError(f"{file.key[:80]!a} names no layer of a registry")
        url = f"{self._http.base}/v2/{self._part}{match['name']}/blobs/{match['digest']}"
        return self._http.open_range(url, start, length, file.size, {})[0]

    def rest(self) -> None:
        """As `SourceReader.rest`."""
        self._http.drop_connections()

    def close(self) -> None:
        """As `SourceReader.close`."""
        self._http.drop_connections()

    def _manifest(self, name: str, reference: str) -> bytes:
        """A manifest's bytes, proved where a digest names it.

        Raises:
            NotFound: there is none.
            IntegrityError: the registry sends other bytes.
        """
        url = f"{self._http.base}/v2/{self._part}{name}/manifests/{reference}"
        try:
            data, answer = self._http.read_small(url, MAX_MANIFEST_BYTES, {"Accept": ACCEPT})
        except NotFound:
            joint = "@" if ":" in reference else ":"
            raise NotFound(f"no artifact {self.url}/{name}{joint}{reference}") from None
        digest = reference if ":" in reference else answer.headers.get("Docker-Content-Digest", "")
        if is_oci_digest(digest) and digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
            raise IntegrityError(f"{self.url}/{name} sends other bytes than {digest}")
        return data
