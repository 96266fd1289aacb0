"""Sources: storages of others, from which models are imported in place.

reader = open_reader(SourceSettings(url="s3://bucket/prefix"))
for file in reader.files("llama"): ...            # path, key, size, validator, SHA-256 if the source knows it
body = reader.open(file, start, length)           # exactly the bytes that were listed
"""

import re
from collections.abc import Callable

from p2pcache.errors import UsageError
from p2pcache.io.sources.base import SourceFile, SourceReader
from p2pcache.io.sources.settings import SourceSettings

__all__ = ["SourceFile", "SourceReader", "SourceSettings", "is_kind", "open_reader", "unknown_kind"]

_SHAPES = (
    "file:///ABSOLUTE/DIRECTORY, s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX], az://CONTAINER[/PREFIX], "
    "https://HOST[/PATH], hf://[OWNER], oci://HOST[/PART], oci-layout:///ABSOLUTE/DIRECTORY"
)


def is_kind(scheme: str) -> bool:
    """Whether sources of this scheme are read here."""
    return scheme in _READERS


def unknown_kind(url: str) -> UsageError:
    """The error for a URL whose scheme no source has."""
    shown = re.sub(r"//[^/@]*@", "//", url)
    return UsageError(f"no source of this kind: {shown!a}; expected one of {_SHAPES}")


def open_reader(settings: SourceSettings) -> SourceReader:
    """Open the source that settings name. Contacts no server yet; a directory must exist.

    Raises:
        UsageError: a scheme or URL that isn't understood.
        NotFound: a directory that doesn't exist.
        NotAllowed: credentials that can't be right, or can't be had.
    """
    reader = _READERS.get(settings.url.partition("://")[0])
    if reader is None:
        raise unknown_kind(settings.url)
    return reader(settings)


# Each imports its client when it is first opened: botocore alone costs 0.2 s.


def _directory(settings: SourceSettings) -> SourceReader:
    from p2pcache.io.sources.directory import DirectoryReader

    return DirectoryReader(settings.url)


def _bucket(settings: SourceSettings) -> SourceReader:
    from p2pcache.io.sources.bucket import BucketReader

    return BucketReader(settings)


def _google(settings: SourceSettings) -> SourceReader:
    from p2pcache.io.sources.google import GoogleReader

    return GoogleReader(settings)


def _azure(settings: SourceSettings) -> SourceReader:
    from p2pcache.io.sources.azure import AzureReader

    return AzureReader(settings)


def _web(settings: SourceSettings) -> SourceReader:
    from p2pcache.io.sources.web import WebReader

    return WebReader(settings)


def _hub(settings: SourceSettings) -> SourceReader:
    from p2pcache.io.sources.hub import HubReader

    return HubReader(settings)


def _registry(settings: SourceSettings) -> SourceReader:
    from p2pcache.io.sources.oci.reader import RegistryReader

    return RegistryReader(settings)


def _layout(settings: SourceSettings) -> SourceReader:
    from p2pcache.io.sources.oci.layout import LayoutReader

    return LayoutReader(settings.url)


_READERS: dict[str, Callable[[SourceSettings], SourceReader]] = {
    "file": _directory, "s3": _bucket, "gs": _google, "az": _azure, "http": _web, "https": _web, "hf": _hub,
    "oci": _registry, "oci-layout": _layout,
}  # fmt: skip
