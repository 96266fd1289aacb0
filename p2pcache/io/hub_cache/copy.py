"""`pull --layout hf-cache --to DIR`: a model put into the cache of a hub's client, which finds it by its name.

Standard library only: the command's fast path uses it.
"""

import os
import secrets
from pathlib import Path

from p2pcache.errors import UsageError
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.files.materialise import Mode, materialise
from p2pcache.io.hub_cache.layout import REFS, SNAPSHOTS, commit_of, repo_folder, revisions


def put_into_hub_cache(
    tree: Path, cache: Path, name: str, digest: str, tag: str, mode: Mode = "auto"
) -> Path:
    """Put a published tree into a hub's cache: the whole snapshot or nothing, then what the tag means.

    Args:
        tree: the published directory.
        cache: `HF_HUB_CACHE`, such as ~/.cache/huggingface/hub; made where it is missing.
        name: `[namespace/]name`, as clients will ask for it.
        digest: of the model.
        tag: the revision that is to mean it; "": none.
        mode: as `materialise`.

    Returns:
        The snapshot's directory.

    Raises:
        UsageError: no hub has such a name, or something else is there.
        P2PCacheError: as `materialise`.
    """
    folder = repo_folder(name)
    if not folder:
        raise UsageError(f"{name}: no hub has a name with -- or ..; leave --layout out")
    snapshot = cache / folder / SNAPSHOTS / commit_of(digest)
    materialise(tree, snapshot, mode)
    refs = cache / folder / REFS
    with disk_errors(str(refs)):
        refs.mkdir(exist_ok=True)
        for revision, commit in revisions({tag: digest} if tag else {}).items():
            _replace(refs / revision, commit)
    return snapshot


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with temporary.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
