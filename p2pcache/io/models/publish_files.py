"""What a tree of a model shows, whole or only some of its files; and what people are told of a model."""

from collections.abc import Collection, Iterator

from p2pcache.core.format.file_filter import name_of
from p2pcache.core.format.layout import Layout
from p2pcache.errors import P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io.blobs.blob_pool import Blobs
from p2pcache.io.disk.store_info import ModelInfo
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.published_tree import Tree, Trees


def tree_files(layout: Layout) -> Iterator[tuple[str, str]]:
    """(path, blob id) of every file."""
    for file in layout.manifest.files:
        yield file.path, layout.blobs[layout.blob_of_file[file.path]].id


def show_files(
    blobs: Blobs, trees: Trees, model: ModelStore, ref: Ref, paths: Collection[str]
) -> str:
    """Show only these files, flushed already, in a tree of their own; no tag points at it.

    Returns:
        The tree's path relative to the models directory.

    Raises:
        P2PCacheError: one of them lacks chunks.
    """
    chosen = set(paths)
    files = [(path, blob) for path, blob in tree_files(model.layout) if path in chosen]
    absent = sum(not blobs.is_published(blob) for _, blob in files)
    if absent:
        raise P2PCacheError(f"{absent} of the chosen files lack chunks; pull them again")
    tree = Tree(ref.namespace, ref.name, model.digest, name_of(list(paths)))
    trees.publish(tree, files)
    return tree.path


def label(model: ModelInfo) -> str:
    """A model as people call it."""
    return ", ".join(ref.short for ref in model.names) or f"blake3:{model.digest}"
