"""Publishing: a model's tree and tag appear when its bytes are durable; some of its files in a tree of their own."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from p2pcache.core.format.file_filter import name_of
from p2pcache.core.format.layout import Layout
from p2pcache.errors import P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.disk.agent_db import Records
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.published_tree import Tree, Trees


class Publisher(NamedTuple):
    """Publishes models of one cache dir. Callers hold the pool's `maintenance`."""

    blobs: BlobPool
    trees: Trees
    records: Records

    def publish(
        self, model: ModelStore, ref: Ref | None, generation: int | None, *, back: bool
    ) -> str:
        """See `ModelStore.publish`."""
        model.flush()
        absent = sum(not blob.published for blob in model.files)
        if absent:
            raise P2PCacheError(
                f"model {model.digest} isn't complete: {absent} files lack chunks; pull it again"
            )
        if ref is None:
            return ""
        tree = Tree(ref.namespace, ref.name, model.digest)
        tagged = self.records.tags_of(model.digest)
        for place in {tree, *(Tree(r.namespace, r.name, model.digest) for r in tagged)}:
            self.trees.publish(place, _files(model.layout))
            name = ref._replace(namespace=place.namespace, name=place.name)
            self.trees.list_files(name, model.digest, model.layout.manifest.files)
        # The tag is last: it never points at a tree that isn't durable. A tag that is right already
        # isn't written: publishing a complete model must work on a full disk, too.
        if generation is None or (not back and generation < self.records.generation(ref.tag_key)):
            return tree.path
        if not self._is_tagged(ref, model.digest, generation):
            self.records.set_tag(ref.tag_key, model.digest, generation)
            self.trees.set_link(ref, model.digest)
        return tree.path

    def publish_files(self, model: ModelStore, ref: Ref, paths: Collection[str]) -> str:
        """Publish only these files, in a tree of their own; no tag points at it.

        Returns:
            The tree's path relative to the models directory.

        Raises:
            P2PCacheError: one of them lacks chunks.
        """
        model.flush()
        chosen = set(paths)
        files = [(path, blob) for path, blob in _files(model.layout) if path in chosen]
        absent = sum(not self.blobs.is_published(blob) for _, blob in files)
        if absent:
            raise P2PCacheError(f"{absent} of the chosen files lack chunks; pull them again")
        tree = Tree(ref.namespace, ref.name, model.digest, name_of(list(paths)))
        self.trees.publish(tree, files)
        return tree.path

    def _is_tagged(self, ref: Ref, digest: str, generation: int) -> bool:
        """Whether both the record and the link of a tag say this."""
        recorded = self.records.tag(ref.tag_key) == (digest, generation)
        return recorded and self.trees.link(ref) == digest


def _files(layout: Layout) -> Iterator[tuple[str, str]]:
    """(path, blob id) of every file."""
    for file in layout.manifest.files:
        yield file.path, layout.blobs[layout.blob_of_file[file.path]].id
