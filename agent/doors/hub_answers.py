"""The answers of a model hub, in the shapes that huggingface_hub reads.

A model's commit is the first 40 digits of its manifest's digest. A file's ETag is its SHA-256 where the manifest
has it, as on the hub; else the id of its blob.
"""

import re
from collections.abc import Iterable, Mapping

from p2pcache.core.format.manifest import File
from p2pcache.io.hub_cache.layout import commit_of
from p2pcache.io.hub_cache.listing import blob_id_of

PAGE_ENTRIES = 1000  # of a tree, as on the hub
_POINTER_BYTES = 134  # of a Git LFS pointer with a size of ten digits; nobody reads one here


def model_info(repo: str, digest: str, files: Iterable[File], *, blobs: bool) -> dict[str, object]:
    """`GET /api/models/REPO`: a model and the names of its files.

    Args:
        repo: `namespace/name`.
        digest: of the model.
        files: of the model.
        blobs: give sizes, too.
    """
    return {
        "_id": commit_of(digest), "id": repo, "modelId": repo, "sha": commit_of(digest), "private": False,
        "gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": [],
        "siblings": [{"rfilename": file.path, **(_blob(file) if blobs else {})} for file in files],
    }  # fmt: skip


def _blob(file: File) -> dict[str, object]:
    return {"size": file.size, "blobId": blob_id_of(file), **_lfs(file, "sha256")}


def _lfs(file: File, name: str) -> dict[str, object]:
    """Large files by their SHA-256, which clients compare: only where it is known."""
    if not file.sha256:
        return {}
    return {"lfs": {name: file.sha256.hex(), "size": file.size, "pointerSize": _POINTER_BYTES}}


def file_entry(file: File) -> dict[str, object]:
    """A file of a tree."""
    return {
        "type": "file", "path": file.path, "size": file.size, "oid": blob_id_of(file),
        **_lfs(file, "oid"),
    }  # fmt: skip


def names(files: Iterable[File], folder: str, *, recursive: bool) -> list[tuple[str, File | None]]:
    """What lies below a folder ("": the root), by path; None: a folder. [] if there is no such folder.

    Without `recursive` only what lies directly in it.
    """
    prefix = f"{folder}/" if folder else ""
    found: dict[str, File | None] = {}
    for file in files:
        if not file.path.startswith(prefix):
            continue
        inside = file.path[len(prefix) :].split("/")
        below = range(1, len(inside)) if recursive else range(1, min(2, len(inside)))
        found |= dict.fromkeys(prefix + "/".join(inside[:end]) for end in below)
        if recursive or len(inside) == 1:
            found[file.path] = file
    return sorted(found.items())


def tree(listed: Iterable[tuple[str, File | None]]) -> list[dict[str, object]]:
    """The entries of these names."""
    return [_folder_entry(path) if file is None else file_entry(file) for path, file in listed]


def entries(files: Mapping[str, File], paths: Iterable[str]) -> list[dict[str, object]]:
    """The entries of these paths, of files and folders; those that aren't there are left out."""
    wanted = [path.strip("/") for path in paths]
    folders = {path[: m.start()] for path in files for m in re.finditer("/", path)} & set(wanted)
    return [
        file_entry(files[path]) if path in files else _folder_entry(path)
        for path in wanted if path in files or path in folders
    ]  # fmt: skip


def _folder_entry(path: str) -> dict[str, object]:
    return {"type": "directory", "path": path, "size": 0, "oid": "0" * 40}


def commit(digest: str, title: str) -> dict[str, object]:
    """An entry of `GET /api/models/REPO/commits/REVISION`. Nobody knows who made a model, or when."""
    return {
        "id": commit_of(digest), "title": title, "message": "", "authors": [],
        "date": "1970-01-01T00:00:00.000Z",
    }  # fmt: skip


def refs(revisions: dict[str, str]) -> dict[str, object]:
    """`GET /api/models/REPO/refs`: each revision, with the commit that it means."""
    listed = [
        {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
        for name, commit in sorted(revisions.items())
    ]
    return {"branches": listed, "converts": [], "tags": []}
