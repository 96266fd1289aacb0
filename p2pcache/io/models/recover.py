"""Putting a cache dir in order when it's opened: half-done steps are finished or undone.

Nothing here reads model data. Bytes of which names and records say nothing are suspect; they are
believed only after `blobs.proving.prove_suspects` has hashed them.
"""

import os
import time

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import decode
from p2pcache.errors import InvalidManifest
from p2pcache.io.disk.agent_db import ModelRow, Records
from p2pcache.io.disk.cache_dir import Folders
from p2pcache.io.disk.disk import Disk, names
from p2pcache.io.disk.manifest_folder import ManifestFolder
from p2pcache.io.models import arriving_dir
from p2pcache.io.models.published_tree import Tree, Trees


def recover(
    disk: Disk, folders: Folders, records: Records, manifests: ManifestFolder, trees: Trees
) -> None:
    """Drop torn state, finish evictions, and make records, manifests, trees and links agree."""
    arriving_dir.sweep(disk, folders)
    for name in names(folders.tmp):
        disk.remove_tree(folders.tmp, name)
    _partials(disk, folders)
    known = _models(records, manifests)
    for tree in trees.trees():
        if tree.digest not in known:
            trees.remove(tree)
    for digest in manifests.remote:
        _evicted(disk, folders, records, digest)
    _tags(records, trees, known, known | manifests.remote)
    trees.restore_view()


def _partials(disk: Disk, folders: Folders) -> None:
    present = set(names(folders.partial))
    for name in present:
        blob, _, rest = name.partition(".")
        orphan = bool(rest) and (rest != "have" or blob not in present)
        if orphan or _exists(folders.blobs, blob):
            disk.unlink(folders.partial, name)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _models(records: Records, manifests: ManifestFolder) -> set[str]:
    """Digests that have a manifest and a record; a missing record is made, a lone record dropped."""
    rows = records.model_rows()
    recorded = {row.digest for row in rows if not row.evicted}
    for digest in {row.digest for row in rows} - manifests.local - manifests.remote:
        records.remove_model(digest)
    manifests.forget_manifests(
        manifests.remote - {row.digest for row in rows}
    )  # nothing has its names
    for digest in manifests.local - recorded:
        data = manifests.stored(digest)
        try:
            layout = Layout(decode(data or b"", digest), digest)
        except InvalidManifest:
            manifests.forget_manifests([digest])
            continue
        manifest = layout.manifest
        records.add_model(
            ModelRow(digest, manifest.size_bytes, len(manifest.files), time.time()),
            [(b.id, b.size) for b in layout.blobs],
        )
        recorded.add(digest)
    return recorded & manifests.local


def _evicted(disk: Disk, folders: Folders, records: Records, digest: str) -> None:
    """Finish an eviction: delete what only this model needs."""
    own = records.own_blobs(digest)
    for blob in own:
        disk.unlink(folders.blobs, blob)
        disk.unlink(folders.partial, blob)
        disk.unlink(folders.partial, f"{blob}.have")
    if records.blobs_of(digest):
        records.remove_proofs(own)
        records.evict_model(digest, 0.0, time.time())


def _tags(records: Records, trees: Trees, known: set[str], named: set[str]) -> None:
    """Links follow the records; links without a record (a lost database) are adopted.

    Args:
        records: of the cache.
        trees: of the cache.
        known: models that may have bytes here.
        named: those that may have a tag, evicted ones included.
    """
    linked = dict(trees.links())
    tagged = dict(records.tags())
    for ref, digest in tagged.items():
        if digest not in named:
            records.remove_tag(ref.tag_key)
        elif linked.get(ref) != digest and trees.exists(Tree(ref.namespace, ref.name, digest)):
            trees.set_link(ref, digest)
            linked[ref] = digest
    for ref, digest in records.asked():
        if digest not in named:
            records.remove_tag(ref.tag_key)
    for ref, digest in linked.items():
        if ref in tagged and digest in known:
            continue
        if digest in known:
            records.set_tag(ref.tag_key, digest, 0)
        else:
            trees.remove_link(ref)
