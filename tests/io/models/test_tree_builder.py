"""Trees on file systems with few hard links, and with none."""

import errno
import os
from pathlib import Path

import pytest

from p2pcache.errors import NotAllowed
from p2pcache.io.disk.disk import Disk
from tests.io.models.store_kit import REF, model, open_store


class FewLinks(Disk):
    """A file system on which no file has room for another link."""

    def link(self, source: int, old: str, target: int, new: str) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))


def test_a_blob_with_too_many_links_is_copied_into_the_tree(tmp_path: Path) -> None:
    wanted = model()
    store = open_store(tmp_path, FewLinks())
    here = wanted.add(store)
    wanted.fill(here)
    tree = tmp_path / "cache/models" / here.publish(REF, 1)
    wanted.assert_tree(tree)
    assert (tree / "config.json").stat().st_mode & 0o777 == 0o444
    store.close()


class NoMoreLinks(Disk):
    """A file system that had hard links when the cache was opened, and refuses them later."""

    refuses = False

    def link(self, source: int, old: str, target: int, new: str) -> None:
        if self.refuses:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        super().link(source, old, target, new)


def test_a_refused_hard_link_is_a_clear_error_and_leaves_no_half_tree(tmp_path: Path) -> None:
    wanted, disk = model(), NoMoreLinks()
    store = open_store(tmp_path, disk)
    disk.refuses = True
    here = wanted.add(store)
    wanted.fill(here)
    with pytest.raises(NotAllowed, match="not permitted"):
        here.publish(REF, 1)
    assert not (tmp_path / "cache/models/team").exists()
    store.close()
