"""Origins: the durable storages that models are pushed to and read from, each part once.

origin = open_origin("s3://bucket/prefix")     # or file:///mnt/models
repo = OriginRepo(origin)                      # tags, manifests, blobs (repo.py)
fetch_runs(repo, layout, store, runs, ...)     # leased reads into the cache (fetch.py)
"""

import re

from p2pcache.errors import UsageError
from p2pcache.io.origins.base import Origin, OriginSettings
from p2pcache.io.origins.retry import Retrying, RetryPolicy

__all__ = ["Origin", "OriginSettings", "Retrying", "open_origin"]

_SCHEMES = "s3://BUCKET[/PREFIX], file:///ABSOLUTE/DIRECTORY"


def open_origin(url: str, settings: OriginSettings | None = None) -> Retrying:
    """Open the origin that a URL names, with retries around it.

    Contacts no server yet; a directory must exist. Credentials come from the storage's own
    environment, files or instance roles.

    Args:
        url: one of the schemes above.
        settings: limits; by default `OriginSettings.from_env()`.

    Raises:
        UsageError: a scheme or URL that isn't understood.
        NotFound: a directory that doesn't exist.
    """
    settings = OriginSettings.from_env() if settings is None else settings
    policy = RetryPolicy(settings.retry_for_s)
    scheme = url.partition("://")[0]
    if scheme == "file":
        from p2pcache.io.origins.file import FileOrigin

        return Retrying(FileOrigin(url), policy)
    if scheme == "s3":
        from p2pcache.io.origins.s3.origin import S3Origin  # botocore costs 0.2 s to import

        return Retrying(S3Origin(url, settings, policy), policy)
    shown = re.sub(r"//[^/@]*@", "//", url)  # somebody may have typed a password into it
    raise UsageError(f"no origin of this kind: {shown!r}; expected one of {_SCHEMES}")
