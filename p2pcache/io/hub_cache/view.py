"""The hub view `models/.hf/`: the published models once more, as the cache of a hub's client, without a second copy.

Snapshots are links to published trees. All of it follows from trees and tags, so nothing is synced but listings of
files: what a crash left is put right when the cache is opened. Clients only read; what somebody else wrote there goes
at the next start.
"""

import os
import secrets
import stat
from collections.abc import Iterable, Mapping

from p2pcache.core.format.manifest import File
from p2pcache.ids import Ref, is_spelling_of
from p2pcache.io.disk.cache_dir import Folders
from p2pcache.io.disk.disk import Disk, names, read_small
from p2pcache.io.hub_cache.layout import (
    REFS,
    SNAPSHOTS,
    TREES,
    commit_of,
    repo_folder,
    revisions,
)
from p2pcache.io.hub_cache.listing import encode_listing

FOLDER = ".hf"  # no namespace begins with a dot
_OURS = (SNAPSHOTS, REFS, TREES)
_NEW = ".new-"  # begins names that nobody else sees yet


class HubView:
    """The view of one cache dir. Callers serialise (the pool's maintenance lock); errors are the system's own."""

    def __init__(self, disk: Disk, folders: Folders) -> None:
        """Read how names are written from the links that are there.

        Args:
            disk: how to touch the disk.
            folders: of the cache dir.
        """
        self._disk = disk
        self._root = disk.ensure_directory(folders.models, FOLDER, 0o755)
        self._spelled: dict[str, str] = {}  # another spelling, by the folder in lower case
        for entry in names(self._root):
            target = _link(self._root, entry)
            if target and target == entry.lower():
                self._spelled[target] = entry

    def close(self) -> None:
        """Close the directory."""
        os.close(self._root)

    def spell(self, ref: Ref, spelling: str) -> None:
        """Show a model by its name as it is written, too; an earlier spelling goes.

        Args:
            ref: names the model.
            spelling: `[namespace/]name`, with capitals or without.
        """
        folder = repo_folder(ref.full_name)
        if not folder or not is_spelling_of(spelling, ref):
            return
        old, new = self._spelled.get(folder, folder), repo_folder(spelling)
        if new == folder:
            self._spelled.pop(folder, None)
        else:
            self._spelled[folder] = new
        if old not in (folder, new):
            self._disk.unlink(self._root, old)
        self._link_spelling(folder)

    def spelling(self, ref: Ref) -> str:
        """How a name is written, as far as this cache knows: `[namespace/]name`."""
        folder = repo_folder(ref.full_name)
        return (
            self._spelled.get(folder, folder).partition("--")[2].replace("--", "/") or ref.full_name
        )

    def show(self, ref: Ref, trees: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Show what there is of one name; without a tree nothing.

        Args:
            ref: names the model; its tag doesn't count.
            trees: for each digest the entry of its whole tree, in the folder of the name.
            tags: the digest that each tag means.
        """
        folder = repo_folder(ref.full_name)
        if not folder:
            return
        if not trees:
            self._hide(folder)
            return
        repo = self._disk.ensure_directory(self._root, folder, 0o755)
        try:
            below = f"../../../{ref.namespace}/{ref.name}"
            links = {commit_of(digest): f"{below}/{entry}" for digest, entry in trees.items()}
            refs = revisions({tag: digest for tag, digest in tags.items() if digest in trees})
            # A revision never means a snapshot that isn't there.
            self._add_snapshots(repo, links)
            self._set_refs(repo, refs)
            self._keep(repo, SNAPSHOTS, links)
            self._keep(repo, TREES, {f"{commit}.json" for commit in links})
        finally:
            os.close(repo)
        self._link_spelling(folder)

    def list_files(self, ref: Ref, digest: str, files: Iterable[File]) -> None:
        """Write the listing of a model's files that clients would otherwise ask for and write; again does nothing."""
        folder = repo_folder(ref.full_name)
        if not folder:
            return
        repo = self._disk.ensure_directory(self._root, folder, 0o755)
        trees = -1
        try:
            trees = self._disk.ensure_directory(repo, TREES, 0o755)
            name = f"{commit_of(digest)}.json"
            if name not in names(trees):
                self._write(trees, name, encode_listing(files), durable=True)
        finally:
            os.close(repo)
            if trees >= 0:
                os.close(trees)

    def keep_only(self, shown: Iterable[Ref]) -> None:
        """Remove whatever belongs to none of these names, or isn't ours."""
        folders = {repo_folder(ref.full_name) for ref in shown}
        for entry in names(self._root):
            if self._spelled.get(entry.lower()) == entry and entry.lower() in folders:
                continue
            if entry not in folders or not _is_directory(self._root, entry):
                self._disk.remove_tree(self._root, entry)
                continue
            repo = self._disk.open_directory(self._root, entry)
            try:
                for inside in names(repo):
                    if inside not in _OURS or not _is_directory(repo, inside):
                        self._disk.remove_tree(repo, inside)
            finally:
                os.close(repo)
        self._spelled = {one: spelled for one, spelled in self._spelled.items() if one in folders}

    def _hide(self, folder: str) -> None:
        if spelled := self._spelled.pop(folder, None):
            self._disk.unlink(self._root, spelled)
        self._disk.remove_tree(self._root, folder)

    def _link_spelling(self, folder: str) -> None:
        spelled = self._spelled.get(folder)
        if spelled is None or not _is_directory(self._root, folder):
            return
        if _link(self._root, spelled) != folder:
            self._disk.remove_tree(self._root, spelled)
            self._disk.symlink(folder, self._root, spelled)

    def _add_snapshots(self, repo: int, links: Mapping[str, str]) -> None:
        snapshots = self._disk.ensure_directory(repo, SNAPSHOTS, 0o755)
        try:
            for commit, target in links.items():
                if _link(snapshots, commit) != target:
                    self._disk.remove_tree(snapshots, commit)
                    self._disk.symlink(target, snapshots, commit)
        finally:
            os.close(snapshots)

    def _set_refs(self, repo: int, refs: Mapping[str, str]) -> None:
        folder = self._disk.ensure_directory(repo, REFS, 0o755)
        try:
            for revision, commit in refs.items():
                if read_small(folder, revision, len(commit)) != commit.encode():
                    self._write(folder, revision, commit.encode())
        finally:
            os.close(folder)
        self._keep(repo, REFS, refs)

    def _keep(self, repo: int, name: str, wanted: Iterable[str]) -> None:
        """Remove the other entries of a folder."""
        try:
            folder = self._disk.open_directory(repo, name)
        except FileNotFoundError:
            return
        try:
            for entry in set(names(folder)).difference(wanted):
                self._disk.remove_tree(folder, entry)
        finally:
            os.close(folder)

    def _write(self, folder: int, name: str, data: bytes, *, durable: bool = False) -> None:
        temporary = f"{_NEW}{secrets.token_hex(8)}"
        fd = self._disk.open_write(folder, temporary, create=True)
        try:
            self._disk.write_at(fd, data, 0)
            self._disk.chmod(fd, 0o444)  # containers read it
            if durable:
                self._disk.sync_data(fd)
        finally:
            os.close(fd)
        self._disk.rename(folder, temporary, folder, name)


def _link(folder: int, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return ""


def _is_directory(parent: int, name: str) -> bool:
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(info.st_mode)
