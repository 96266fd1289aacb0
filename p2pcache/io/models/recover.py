"""Putting a cache dir in order when it's opened: half-done steps are finished or undone.

Nothing here reads model data. Bytes of which names and records say nothing are suspect; they are
believed only after `blobs.proving.prove_suspects` has hashed them.
"""

import time

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import MAX_MANIFEST_BYTES, decode
from p2pcache.errors import InvalidManifest
from p2pcache.ids import is_digest
from p2pcache.io.disk.agent_db import ModelRow, Records
from p2pcache.io.disk.cache_dir import Folders
from p2pcache.io.disk.disk import Disk, names, read_small
from p2pcache.io.models import arriving_dir
from p2pcache.io.models.published_tree import Tree, Trees


def recover(disk: Disk, folders: Folders, records: Records, trees: Trees) -> None:
    """Drop torn state and make records, manifests, trees and links agree."""
    arriving_dir.sweep(disk, folders)
    for name in names(folders.tmp):
        disk.remove_tree(folders.tmp, name)
    _partials(disk, folders)
    known = _models(disk, folders, records)
    for tree in trees.trees():
        if tree.digest not in known:
            trees.remove(tree)
    _tags(records, trees, known)


def _partials(disk: Disk, folders: Folders) -> None:
    present = set(names(folders.partial))
    published = set(names(folders.blobs))
    for name in present:
        blob, _, rest = name.partition(".")
        orphan = bool(rest) and (rest != "have" or blob not in present)
        if orphan or blob in published:
            disk.unlink(folders.partial, name)


def _models(disk: Disk, folders: Folders, records: Records) -> set[str]:
    """Digests that have a manifest and a record; a missing record is made, a lone record dropped."""
    stored = set()
    for name in names(folders.manifests):
        if is_digest(name):
            stored.add(name)
        else:
            disk.unlink(folders.manifests, name)
    recorded = {row.digest for row in records.model_rows()}
    for digest in recorded - stored:
        records.remove_model(digest)
    for digest in stored - recorded:
        data = read_small(folders.manifests, digest, MAX_MANIFEST_BYTES)
        try:
            layout = Layout(decode(data or b"", digest), digest)
        except InvalidManifest:
            disk.unlink(folders.manifests, digest)
            continue
        manifest = layout.manifest
        records.add_model(
            ModelRow(digest, manifest.size_bytes, len(manifest.files), time.time()),
            [(b.id, b.size) for b in layout.blobs],
        )
        recorded.add(digest)
    return recorded & stored


def _tags(records: Records, trees: Trees, known: set[str]) -> None:
    """Links follow the records; links without a record (a lost database) are adopted."""
    linked = dict(trees.links())
    tagged = dict(records.tags())
    for ref, digest in tagged.items():
        if digest not in known:
            records.remove_tag(ref.tag_key)
        elif linked.get(ref) != digest and trees.exists(Tree(ref.namespace, ref.name, digest)):
            trees.set_link(ref, digest)
    for ref, digest in records.asked():
        if digest not in known:
            records.remove_tag(ref.tag_key)
    for ref, digest in linked.items():
        if ref in tagged:
            continue
        if digest in known:
            records.set_tag(ref.tag_key, digest, 0)
        else:
            trees.remove_link(ref)
