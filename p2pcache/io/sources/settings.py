"""What an operator can set for one source: a section `[sources.NAME]` of the settings file."""

from collections.abc import Mapping

import msgspec

from p2pcache.core.format.source_record import is_source_name
from p2pcache.errors import UsageError
from p2pcache.io.config import PREFIX, ConfigFile, load_tables

VARIABLE = f"{PREFIX}SOURCES"
"""NAME=URL pairs, separated by commas, for places without a file; a section of the same name comes first."""


class SourceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One source. Credentials are never here: they come from the store's own environment and files."""

    url: str = ""
    """What is read: file:///dir, s3://bucket[/prefix], gs://bucket[/prefix], az://container[/prefix], https://host[/path],
    hf:// (every repository of the hub), oci://host[/part] (of a registry) or oci-layout:///dir."""
    namespaces: str = "*"
    """Namespaces into which clients may import from here, separated by commas; *: all."""
    on_miss: bool = False
    """Of hf:// and oci://: import a model that nobody has when somebody pulls `hf://ORG/REPO`, or asks the hub door or
    the OCI door for it."""
    private: bool = False
    """Let https://, gs://, az://, hf:// and oci:// lead to private and loopback addresses, by redirects or names; never
    to link-local ones."""
    profile: str = ""
    """The profile of s3:// in the files of AWS; default: as the environment says."""
    endpoint: str = ""
    """URL of the server of s3://, gs://, az:// or hf://; default: as the environment says (AWS_ENDPOINT_URL,
    STORAGE_EMULATOR_HOST, AZURE_STORAGE_CONNECTION_STRING, HF_ENDPOINT)."""


def read_sources(file: ConfigFile, environ: Mapping[str, str]) -> dict[str, SourceSettings]:
    """The sources that a settings file and the environment name.

    Raises:
        UsageError: a name, a key or a value that can't be right.
    """
    found = load_tables(SourceSettings, "sources", file)
    for pair in filter(None, (text.strip() for text in environ.get(VARIABLE, "").split(","))):
        name, mark, url = pair.partition("=")
        if not mark:
            raise UsageError(f"{VARIABLE}: {pair!r} isn't NAME=URL")
        found.setdefault(name.strip(), SourceSettings(url=url.strip()))
    for name, settings in found.items():
        if not is_source_name(name):
            raise UsageError(
                f"[sources.{name}]: a name has lower-case letters, digits, - and _, and at most 40 of them"
            )
        if "://" not in settings.url:
            raise UsageError(f"[sources.{name}] url: {settings.url!r} isn't a URL")
    return found
