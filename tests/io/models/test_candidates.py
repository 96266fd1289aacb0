"""What the decider of evictions is told of a cache is what its disk holds, also after many changes."""

import contextlib
import random
from pathlib import Path

from p2pcache.ids import Ref
from p2pcache.io.models import room
from p2pcache.io.models.room import Wanted
from p2pcache.io.models.store import Store
from tests.io.models.store_kit import Model, model, open_store

ALL = 1 << 60


def counted(store: Store) -> dict[str, dict[str, int]]:
    """Bytes of disk by blob, of each model that isn't evicted, looked at one by one."""
    infos = {info.digest for info in store.models() if not info.remote}
    found = {}
    for digest in infos:
        opened = store.get(digest)
        assert opened is not None
        found[digest] = {
            b.id: b.size if b.published else b.done_bytes for b in opened.files if b.on_disk
        }
    return found  # fmt: skip


def assert_told(store: Store) -> None:
    """The candidates have the bytes that are theirs alone under their digests, and the shared ones by blob."""
    true = counted(store)
    told = {one.digest: one for one in store.candidates({})}
    assert told.keys() == true.keys()
    for digest, blobs in true.items():
        others = {blob for other, theirs in true.items() if other != digest for blob in theirs}
        shared = {blob: size for blob, size in blobs.items() if blob in others}
        own = sum(blobs.values()) - sum(shared.values())
        assert told[digest].blobs == shared | {digest: own}


def test_sums_follow_every_change(tmp_path: Path) -> None:
    dice = random.Random(5)
    common = [dice.randbytes(900) for _ in range(4)]
    kinds = [
        Model({"own": dice.randbytes(2000), **{f"c{n}": common[n] for n in range(4) if dice.random() < 0.5}}, 1000)
        for _ in range(8)
    ]  # fmt: skip
    refs = [Ref.parse(f"team/m{n}:v1") for n in range(len(kinds))]
    with contextlib.closing(open_store(tmp_path)) as store:
        for _ in range(120):
            number = dice.randrange(len(kinds))
            one = kinds[number]
            known = store.get(one.digest)
            if known is None:
                one.fill(one.add(store))
                store.get(one.digest).publish(refs[number], 1)  # type: ignore[union-attr]
            elif dice.random() < 0.5:
                store.evict_model(one.digest)
            elif dice.random() < 0.5:
                store.remove_model(one.digest)
            else:
                store.removal.let_go(known, 1)
            assert_told(store)
    with contextlib.closing(open_store(tmp_path)) as store:
        assert_told(store)


def test_a_file_that_was_lost_counts_no_more(tmp_path: Path) -> None:
    one = model(1)
    with contextlib.closing(open_store(tmp_path)) as store:
        one.fill(one.add(store))
        opened = one.add(store)
        opened.publish(Ref.parse("team/a:v1"), 1)
        (before,) = store.candidates({})
        blob = max(opened.files, key=lambda b: b.size)
        (tmp_path / "cache/blobs" / blob.id).unlink()
        opened.recheck()
        (after,) = store.candidates({})
        assert sum(before.blobs.values()) - sum(after.blobs.values()) == blob.size


def test_shared_bytes_go_with_the_last_of_their_models(tmp_path: Path) -> None:
    files = {"tokens": b"shared" * 300, "weights": b"1" * 3000}
    models = [Model(files | {"weights": bytes([n]) * 3000}, 1000) for n in range(3)]
    with contextlib.closing(open_store(tmp_path)) as store:
        for number, one in enumerate(models):
            one.fill(one.add(store))
            one.add(store).publish(Ref.parse(f"team/m{number}:v1"), 1)
        choice = room.choose(store, Wanted(3 * 3000 + 1800), 1e10)
        assert [victim.bytes_freed for victim in choice.plan.victims] == [3000, 3000, 4800]
        assert not room.choose(store, Wanted(ALL), 1e10).plan.victims
