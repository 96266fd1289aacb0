"""Free space is asked for before the first byte."""

import contextlib
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.errors import NoSpace
from p2pcache.ids import Ref
from p2pcache.io.disk import reserve_file
from p2pcache.io.disk.disk import Disk, free_bytes
from p2pcache.io.models.store import Store
from tests.io.models.store_kit import REF, Model, open_fds, small_file_system

MB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 MB."""
    with small_file_system(tmp_path / "small", 20 * MB) as place:
        yield place


def megabytes(count: float, seed: int = 0) -> Model:
    data = random.Random(seed).randbytes(int(count * MB))
    return Model({f"{seed}.bin": data, "tail": b"%d" % seed}, 4 * MB)


def fill(disk: Path) -> Path:
    """Somebody else's file takes every block that is left."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert free_bytes(disk) == 0
    return filler


def test_a_model_that_doesnt_fit_is_refused_before_the_first_byte(small_disk: Path) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    fds = open_fds()
    before = free_bytes(small_disk)
    with pytest.raises(NoSpace, match=r"26\.2 MB needed, .* free.*prune") as refused:
        megabytes(25).add(store)
    assert str(small_disk) in str(refused.value)
    assert store.models() == []
    assert list((small_disk / "cache/partial").iterdir()) == []
    assert free_bytes(small_disk) >= before - 64 * 1024
    assert open_fds() == fds
    store.close()


def test_space_is_taken_at_once_and_promises_add_up(small_disk: Path) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    first = megabytes(12, 1)
    first.add(store)
    assert free_bytes(small_disk) < 9 * MB, "the large file has its blocks"
    with pytest.raises(NoSpace):
        megabytes(9, 2).add(store)
    megabytes(4, 3).add(store)
    store.remove_model(first.digest)
    megabytes(9, 2).add(store)
    store.close()


def test_small_files_are_promised_without_being_made(small_disk: Path) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    many = Model({f"f{i}": b"%d" % i * 100_000 for i in range(10, 20)})  # 200 kB each
    here = many.add(store)
    assert free_bytes(small_disk) > 17 * MB
    with pytest.raises(NoSpace, match=r"2\.01 MB are promised to other pulls"):
        megabytes(18, 1).add(store)
    many.fill(here)
    here.publish(REF, 1)
    megabytes(16, 1).add(store)
    store.close()


def test_some_space_is_kept_free(small_disk: Path) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=10 * MB)
    with pytest.raises(NoSpace, match=r"10\.5 MB are kept free"):
        megabytes(11).add(store)
    megabytes(8).add(store)
    store.close()


def test_without_a_reservation_only_written_bytes_take_space(small_disk: Path) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    model = megabytes(25)
    here = model.add(store, reserve=False)
    assert model.put(here, 0)
    model.assert_proved(here)
    with pytest.raises(NoSpace):
        model.add(store)
    assert here.has_chunk(0), "a refused reservation costs nothing that was there"
    store.close()


def test_a_resumed_pull_needs_only_the_rest(small_disk: Path) -> None:
    model = megabytes(12)
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    model.fill(model.add(store), [0, 1])
    store.close()
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    here = model.add(store)
    model.fill(here)
    here.publish(REF, 1)
    store.close()


def test_a_disk_that_fills_up_meanwhile(small_disk: Path) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    model = Model({f"f{i:03}": os.urandom(100_000) for i in range(100)})
    here = model.add(store)
    with (small_disk / "hog").open("wb") as hog:
        os.posix_fallocate(hog.fileno(), 0, free_bytes(small_disk) - 64 * 1024)
    with pytest.raises(NoSpace):
        model.fill(here)
    (small_disk / "hog").unlink()
    model.assert_proved(here)
    model.fill(here)
    here.publish(REF, 1)
    store.close()


class NoFallocate(Disk):
    def allocate(self, fd: int, size_bytes: int) -> bool:
        os.ftruncate(fd, size_bytes)
        return False


def test_promises_hold_where_blocks_cannot_be_taken(small_disk: Path) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=0, disk=NoFallocate())
    first = megabytes(12, 1)
    here = first.add(store)
    assert free_bytes(small_disk) > 18 * MB
    first.fill(here, [0])
    with pytest.raises(NoSpace, match="promised"):
        megabytes(9, 2).add(store)
    megabytes(6, 3).add(store)
    store.close()


def test_a_whole_model_is_published_on_a_full_disk(small_disk: Path) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    model = megabytes(4)
    here = model.add(store)
    model.fill(here)
    path = here.publish(REF, 1)
    filler = fill(small_disk)
    for _ in range(50):  # the write-ahead log has some room of its own
        assert here.publish(REF, 1) == path

    def move_the_tag() -> None:
        for generation in range(2, 200):
            here.publish(REF, generation)

    with pytest.raises(NoSpace):
        move_the_tag()
    filler.unlink()
    here.publish(REF, 300)
    assert store.generation_seen(REF) == 300
    store.close()


OTHER = Ref.parse("team/llama:other")


def published(store: Store, model: Model, *refs: Ref) -> None:
    here = model.add(store)
    model.fill(here)
    for ref in refs:
        here.publish(ref, 1)


def test_a_whole_model_is_removed_from_a_full_disk(small_disk: Path) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    model = megabytes(8)
    published(store, model, REF)
    fill(small_disk)
    assert store.prune(all_unused=True).bytes_freed > 8 * MB
    assert store.models() == []
    published(store, megabytes(7, 1), REF)
    store.close()


def test_a_tag_is_forgotten_on_a_full_disk_again_and_again(small_disk: Path) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    model = megabytes(4)
    published(store, model, REF, OTHER)
    filler = fill(small_disk)
    store.remove_tag(OTHER)
    assert store.tags_of(model.digest) == [REF]
    filler.unlink()
    store.keep_spare()  # as the agent does every minute
    published(store, model, OTHER)
    fill(small_disk)
    store.remove_tag(OTHER)
    store.close()


def test_a_model_of_many_files_is_forgotten_on_a_full_disk(small_disk: Path) -> None:
    """Its rows are more than what is kept back: its files go first."""
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    many = Model({f"f{i:04}": b"%d" % i * 600 for i in range(2000)} | {"large": bytes(4 * MB)})
    published(store, many, REF)
    fill(small_disk)
    (small_disk / "cache" / reserve_file.NAME).unlink()
    fill(small_disk)
    store.remove_model(many.digest)
    assert store.models() == []
    store.close()


def test_a_cache_on_a_full_disk_is_opened_and_emptied(small_disk: Path) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    model = megabytes(8)
    published(store, model, REF, OTHER)
    store.close()
    fill(small_disk)
    for _ in range(3):
        store = Store.open(small_disk / "cache", min_free_bytes=0)
        assert [set(m.tags) for m in store.models()] == [{REF, OTHER}]
        store.close()
        fill(small_disk)
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    store.remove_tag(OTHER)
    assert store.prune(all_unused=True).bytes_freed > 8 * MB
    store.close()
    assert (
        small_disk / "cache" / reserve_file.NAME
    ).stat().st_blocks * 512 == reserve_file.SPARE_BYTES


def test_where_nothing_can_be_forgotten_the_message_says_where_to_make_room(
    small_disk: Path,
) -> None:
    store = Store.open(small_disk / "cache", min_free_bytes=0)
    model = megabytes(4)
    published(store, model, REF, OTHER)
    (small_disk / "cache" / reserve_file.NAME).unlink()
    # The listings of the hub view would give some blocks back.
    shutil.rmtree(small_disk / "cache/models/.hf")
    filler = fill(small_disk)

    def use_up_the_log() -> None:  # it has some room of its own
        for _ in range(2000):
            store.touch(model.digest)

    with pytest.raises(NoSpace, match="p2pcache rm"):
        use_up_the_log()
    with pytest.raises(NoSpace, match=r"other files .*`df") as refused:
        store.remove_tag(OTHER)
    assert str(small_disk) in str(refused.value)
    assert "prune" not in str(refused.value)
    filler.unlink()
    store.remove_tag(OTHER)
    assert store.tags_of(model.digest) == [REF]
    store.close()


def test_a_model_of_more_files_than_inodes_is_refused_before_its_first_byte(
    tmp_path: Path,
) -> None:
    many = Model({f"f{i}": str(i).encode() for i in range(100)})
    with (
        small_file_system(tmp_path / "small", 20 * MB, inodes=60) as place,
        contextlib.closing(Store.open(place / "cache", min_free_bytes=0)) as store,
    ):
        with pytest.raises(NoSpace, match=r"100 files don't fit .* inodes; .*df -i"):
            many.add(store)
        assert not store.models()


def test_a_disk_without_inodes_is_not_called_full(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 20 * MB, inodes=20) as place:
        count = 0
        with contextlib.suppress(OSError):
            for count in range(100):
                (place / str(count)).touch()
        with pytest.raises(NoSpace, match=r"no inodes left; .*df -i"):
            Store.open(place / "cache")
