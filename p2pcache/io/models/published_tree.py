"""Published trees, which people and loaders read: `models/<namespace>/<name>/@<hex>/` and `<tag>` links.

A tree is built of hard links to blobs under `tmp/` and appears by one rename; a tag is a
relative link swapped by rename. Paths come from untrusted manifests: every step goes by
directory fd and never follows a link. The hub view follows each change.
"""

import contextlib
import errno
import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from p2pcache.core.format.file_filter import is_name
from p2pcache.core.format.manifest import File
from p2pcache.errors import UsageError
from p2pcache.ids import Ref, is_digest
from p2pcache.io.disk.cache_dir import Folders
from p2pcache.io.disk.disk import Disk, names
from p2pcache.io.hub_cache.view import HubView
from p2pcache.io.models.tree_builder import MANY_LINKS, TreeBuilder
from p2pcache.io.notes.written_names import WrittenNames

_log = logging.getLogger(__name__)


class Tree(NamedTuple):
    """One published model directory."""

    namespace: str
    name: str
    digest: str
    selection: str = ""  # name of the selection, for a tree of some files; no tag points at it

    @property
    def entry(self) -> str:
        """Its name in the directory of the model's name."""
        return f"@{self.digest}+{self.selection}" if self.selection else f"@{self.digest}"

    @property
    def path(self) -> str:
        """Relative to the models directory."""
        return f"{self.namespace}/{self.name}/{self.entry}"


class Trees:
    """All model trees of one cache dir. Callers serialise (the pool's maintenance lock)."""

    def __init__(self, disk: Disk, folders: Folders, written_names: WrittenNames) -> None:
        self._disk = disk
        self._folders = folders
        self._written_names = written_names
        self._view = HubView(disk, folders)
        walk = self._walk()
        found = (_parse(space, name, entry) for space, name, entries in walk for entry in entries)
        # By digest; nobody else makes any. Sets are replaced, not changed: other threads read them meanwhile.
        self._trees: dict[str, frozenset[Tree]] = {}
        for tree in found:
            if tree is not None:
                self._add(tree)

    def close(self) -> None:
        """Close what is open."""
        self._view.close()

    def exists(self, tree: Tree) -> bool:
        """Whether the tree is there (then it's complete)."""
        parent = self._open(tree.namespace, tree.name)
        if parent is None:
            return False
        try:
            os.close(self._disk.open_directory(parent, tree.entry))
        except (FileNotFoundError, NotADirectoryError):
            return False
        finally:
            os.close(parent)
        return True

    def publish(self, tree: Tree, files: Iterable[tuple[str, str]]) -> None:
        """Make the tree appear, complete. An undamaged one stays as it is.

        Args:
            tree: its place.
            files: (path inside the model, blob id), ascending by path.
        """
        files = list(files)
        if self.exists(tree):
            if self._intact(tree, files):
                return
            _log.warning("files of %s were removed or replaced; showing it anew", tree.path)
            self.remove(tree)
        temporary = f"tree-{secrets.token_hex(8)}"
        root = self._disk.ensure_directory(self._folders.tmp, temporary, 0o755)
        TreeBuilder(self._disk, self._folders.blobs, root).build(files)
        parent = self._ensure(tree.namespace, tree.name)
        try:
            self._disk.rename(self._folders.tmp, temporary, parent, tree.entry)
            self._disk.sync(parent)
            self._disk.sync(self._folders.tmp)
        finally:
            os.close(parent)
        self._add(tree)
        self._show(tree.namespace, tree.name)

    def _intact(self, tree: Tree, files: list[tuple[str, str]]) -> bool:
        """Whether each name still is a link to its blob (root may have removed or replaced some)."""
        parent = self._open(tree.namespace, tree.name)
        assert parent is not None
        root = -1
        try:
            root = self._disk.open_directory(parent, tree.entry)
            for path, blob_id in files:
                shown = os.stat(path, dir_fd=root, follow_symlinks=False)
                blob = os.stat(blob_id, dir_fd=self._folders.blobs, follow_symlinks=False)
                copied = blob.st_nlink >= MANY_LINKS and shown.st_size == blob.st_size
                if shown.st_ino != blob.st_ino and not copied:
                    return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        finally:
            os.close(parent)
            if root >= 0:
                os.close(root)
        return True

    def set_link(self, ref: Ref, digest: str) -> None:
        """Point `<tag>` at a tree; a reader sees the old or the new one."""
        parent = self._ensure(ref.namespace, ref.name)
        try:
            temporary = f".tag-{secrets.token_hex(8)}"
            self._disk.symlink(f"@{digest}", parent, temporary)
            self._disk.rename(parent, temporary, parent, ref.tag)
            self._disk.sync(parent)
        finally:
            os.close(parent)
        self._show(ref.namespace, ref.name)

    def link(self, ref: Ref) -> str | None:
        """The digest that `<tag>` points at; None if it isn't there."""
        parent = self._open(ref.namespace, ref.name)
        if parent is None:
            return None
        try:
            target = _link_target(parent, ref.tag)
        finally:
            os.close(parent)
        return target[1:] if target.startswith("@") and is_digest(target[1:]) else None

    def remove_link(self, ref: Ref) -> None:
        """Remove `<tag>` where it's there."""
        parent = self._open(ref.namespace, ref.name)
        if parent is None:
            return
        try:
            self._disk.unlink(parent, ref.tag)
        finally:
            os.close(parent)
        self._show(ref.namespace, ref.name)
        self._tidy(ref.namespace, ref.name)

    def remove(self, tree: Tree) -> None:
        """Make a tree disappear at once, then delete it."""
        parent = self._open(tree.namespace, tree.name)
        if parent is None:
            self._forget(tree)
            return
        temporary = f"gone-{secrets.token_hex(8)}"
        try:
            self._disk.rename(parent, tree.entry, self._folders.tmp, temporary)
            # The rename is durable before files go, or a power cut could leave half a tree in sight.
            self._disk.sync(parent)
            self._disk.sync(self._folders.tmp)
        except FileNotFoundError:
            self._forget(tree)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # A directory in a lower layer of overlayfs can't be renamed. A crash here leaves a tree that isn't
            # intact, and the next `publish` shows it anew.
            self._disk.remove_tree(parent, tree.entry)
        finally:
            os.close(parent)
        self._forget(tree)
        self._show(tree.namespace, tree.name)
        self._disk.remove_tree(self._folders.tmp, temporary)
        self._tidy(tree.namespace, tree.name)

    def trees(self, digest: str | None = None) -> list[Tree]:
        """Every tree, or those of one model; some may have been removed behind our back."""
        if digest is not None:
            return sorted(self._trees.get(digest, ()))
        return sorted(tree for same in self._trees.values() for tree in same)

    def pulled_as(self, digest: str) -> Ref | None:
        """A ref, without its tag, below which a model has a tree; None: it has none."""
        found = self._trees.get(digest)
        return Ref(*min(found)[:2], "", digest) if found else None

    def _add(self, tree: Tree) -> None:
        self._trees[tree.digest] = self._trees.get(tree.digest, frozenset()) | {tree}

    def _forget(self, tree: Tree) -> None:
        rest = self._trees.get(tree.digest, frozenset()) - {tree}
        if rest:
            self._trees[tree.digest] = rest
        else:
            self._trees.pop(tree.digest, None)

    def links(self) -> list[tuple[Ref, str]]:
        """Every tag link with its digest; leftovers of an interrupted swap are removed."""
        found = []
        for space, name, entries in self._walk():
            parent = self._open(space, name)
            if parent is None:
                continue
            try:
                for entry in entries:
                    if entry.startswith(".tag-"):
                        self._disk.unlink(parent, entry)
                    elif not entry.startswith("@"):
                        target = _link_target(parent, entry)
                        if target.startswith("@") and is_digest(target[1:]):
                            found.append((Ref(space, name, entry), target[1:]))
            finally:
                os.close(parent)
        return found

    # -- the hub view ----------------------------------------------------------------------------

    def spell(self, ref: Ref, spelling: str) -> None:
        """Show a name as it is written, in the hub view, too."""
        self._written_names.remember(ref, spelling)
        with _view_errors(ref):
            self._view.spell(ref, spelling)

    def written(self, ref: Ref) -> str:
        """A ref as people write it: with the capitals of its name, as far as this cache knows; without its digest."""
        return f"{self._spelling(ref)}:{ref.tag}"

    def spellings(self, refs: Iterable[Ref]) -> dict[str, str]:
        """How names are written, by names; those in lower case aren't told."""
        found = {ref.full_name: self._spelling(ref) for ref in refs}
        return {name: written for name, written in found.items() if name != written}

    def _spelling(self, ref: Ref) -> str:
        # The links of a cache of an older release say it alone.
        return self._written_names.of(ref) or self._view.spelling(ref)

    def list_files(self, ref: Ref, digest: str, files: Iterable[File]) -> None:
        """Tell clients of the hub view which files a model has."""
        with _view_errors(ref):
            self._view.list_files(ref, digest, files)

    def restore_view(self) -> None:
        """Make the hub view what trees and tags say."""
        found = {Ref(space, name, "") for space, name, _ in self._walk()}
        try:
            self._view.keep_only(found)
        except OSError as error:
            _log.warning("can't tidy the hub view: %s", error.strerror)
        for ref in found:
            self._show(ref.namespace, ref.name)

    def _show(self, namespace: str, name: str) -> None:
        """Let the hub view follow a change. It is no reason to fail: a full disk must not stop a publication."""
        ref = Ref(namespace, name, "")
        with _view_errors(ref):
            parent = self._open(namespace, name)
            entries: dict[str, str] = {}
            tags: dict[str, str] = {}
            if parent is not None:
                try:
                    for entry in names(parent):
                        tree = _parse(namespace, name, entry)
                        if tree is None:
                            tags[entry] = _link_target(parent, entry)[1:]
                        elif not tree.selection:
                            entries[tree.digest] = entry
                finally:
                    os.close(parent)
            self._view.show(ref, entries, tags)
            if entries and (written := self._written_names.of(ref)):
                self._view.spell(ref, written)

    def _walk(self) -> list[tuple[str, str, list[str]]]:
        found = []
        for space in _names(self._disk, self._folders.models, "."):
            if space.startswith("."):  # no namespace: models that still arrive
                continue
            fd = self._disk.open_directory(self._folders.models, space)
            try:
                found += [(space, name, _names(self._disk, fd, name)) for name in names(fd)]
            finally:
                os.close(fd)
        return found

    def _ensure(self, namespace: str, name: str) -> int:
        space = self._disk.ensure_directory(self._folders.models, namespace, 0o755)
        try:
            found = self._disk.ensure_directory(space, name, 0o755)
            self._disk.sync(space)
            self._disk.sync(self._folders.models)
            return found
        finally:
            os.close(space)

    def _open(self, namespace: str, name: str) -> int | None:
        try:
            space = self._disk.open_directory(self._folders.models, namespace)
        except FileNotFoundError:
            return None
        try:
            return self._disk.open_directory(space, name)
        except FileNotFoundError:
            return None
        finally:
            os.close(space)

    def _tidy(self, namespace: str, name: str) -> None:
        """Remove the directories above a removed tree when they are empty."""
        try:
            space = self._disk.open_directory(self._folders.models, namespace)
        except FileNotFoundError:
            return
        try:
            self._disk.rmdir(space, name)
            self._disk.rmdir(self._folders.models, namespace)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
        finally:
            os.close(space)


@contextlib.contextmanager
def _view_errors(ref: Ref) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _log.warning("the hub view of %s is out of date: %s", ref.full_name, error.strerror)


def is_tree_name(entry: str) -> bool:
    """Whether a directory has the name of a published tree, whole or of some files."""
    return _parse("", "", entry) is not None


def ref_of_tree(path: Path) -> Ref | None:
    """The ref, with its digest, of which a directory is a published tree, whole or of some files; None: of none."""
    namespace, name, entry = ("", "", "", *path.resolve().parts)[-3:]
    found = _parse(namespace, name, entry)
    try:
        return Ref.parse(f"{namespace}/{name}@blake3:{found.digest}") if found else None
    except UsageError:  # a directory of such a name elsewhere
        return None


def _parse(namespace: str, name: str, entry: str) -> Tree | None:
    digest, plus, selection = entry[1:].partition("+")
    if not entry.startswith("@") or not is_digest(digest) or bool(plus) != is_name(selection):
        return None
    return Tree(namespace, name, digest, selection)


def _names(disk: Disk, parent: int, name: str) -> list[str]:
    try:
        fd = disk.open_directory(parent, name)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENOENT):
            return []  # not ours
        raise
    try:
        return names(fd)
    finally:
        os.close(fd)


def _link_target(parent: int, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError:
        return ""
