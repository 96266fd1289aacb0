"""The store as the agent uses it: add, fill, publish, share, tag, remove, prune."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.core import bitset
from p2pcache.errors import (
    Conflict,
    InvalidManifest,
    LocalProtocolError,
    NotFound,
    P2PCacheError,
    UsageError,
)
from p2pcache.ids import Ref
from p2pcache.io.models.store import Store
from tests.io.models.store_kit import REF, Model, model, open_fds, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def test_a_model_fills_up_and_is_published(store: Store, tmp_path: Path) -> None:
    wanted = model()
    here = wanted.add(store)
    assert here.have_runs() == 0
    assert here.missing_chunks(0) == list(wanted.layout.run_chunks(0))
    wanted.fill(here)
    assert here.complete
    assert here.have_runs() == bitset.full(wanted.layout.run_count)
    assert here.bytes_done == wanted.layout.total_bytes
    assert here.begin(0) is None
    wanted.assert_proved(here)
    path = here.publish(REF, 7)
    assert path == f"team/llama/@{wanted.digest}"
    models = tmp_path / "cache/models"
    wanted.assert_tree(models / path)
    wanted.assert_tree(models / "team/llama/v1")
    assert (models / "team/llama/v1").readlink() == Path(f"@{wanted.digest}")
    assert here.publish(REF, 7) == path
    wanted.assert_proved(here)
    assert store.published_path(REF, wanted.digest) == path


def test_modes_hold_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        opened = open_store(tmp_path)
        wanted = model()
        here = wanted.add(opened)
        wanted.fill(here)
        path = tmp_path / "cache/models" / here.publish(REF, 1)
        opened.close()
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in path.rglob("*")}
    assert modes["config.json"] == modes["empty"] == 0o444
    assert modes["sub"] == modes["dir"] == path.stat().st_mode & 0o777 == 0o755
    cache = tmp_path / "cache"
    assert (cache / "models").stat().st_mode & 0o777 == 0o755
    assert (cache / "partial").stat().st_mode & 0o777 == 0o700


def test_only_one_process_uses_a_cache_dir(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"used by another agent \\(pid {os.getpid()}\\)"):
        open_store(tmp_path)


def test_wrong_bytes_are_refused_and_leave_no_trace(store: Store) -> None:
    wanted = model()
    here = wanted.add(store)
    writer = here.begin(0)
    assert writer is not None
    lie = memoryview(bytes(writer.length))
    writer.update(lie)
    writer.put(0, lie)
    assert not writer.finish()
    assert not here.has_chunk(0)
    with pytest.raises(NotFound):
        here.source(0)
    assert wanted.put(here, 0)


def test_a_writer_insists_on_whole_chunks(store: Store) -> None:
    wanted = model()
    here = wanted.add(store)
    writer = here.begin(0)
    assert writer is not None
    data = memoryview(wanted.chunk(0))
    with pytest.raises(LocalProtocolError):
        writer.put(1, data)
    with pytest.raises(LocalProtocolError):
        writer.put(-1, data[:1])
    writer.update(data)
    with pytest.raises(LocalProtocolError, match="bytes put"):
        writer.finish()
    writer = here.begin(0)
    assert writer is not None
    writer.put(0, data)
    writer.update(data[1:])
    with pytest.raises(LocalProtocolError):
        writer.finish()
    writer = here.begin(0)
    assert writer is not None
    writer.update(data)
    with pytest.raises(LocalProtocolError):
        writer.update(data)
    writer.abort()
    assert not here.has_chunk(0)


def test_the_manifest_must_be_the_layouts(store: Store) -> None:
    with pytest.raises(InvalidManifest):
        store.add_model(model(1).layout, model(2).encoded)


def test_models_share_blobs_also_while_both_arrive(store: Store) -> None:
    shared = bytes(range(256)) * 20
    one = Model({"a": shared, "b": b"one"}, 1000)
    two = Model({"a2": shared, "b": b"two", "c": shared[:1000]}, 1000)
    first, second = one.add(store), two.add(store)
    for chunk in range(one.layout.chunk_count):
        if len(list(one.layout.places(chunk))) == 1 and one.chunk(chunk) in shared:
            assert one.put(first, chunk)
    # Blob "a" is shared, but chunk 0 of the second has a place in "c" too.
    assert not second.has_chunk(0)
    second.copy_local()
    missing = [c for c in range(two.layout.chunk_count) if not second.has_chunk(c)]
    assert [two.chunk(c) for c in missing] == [b"two"]
    one.fill(first)
    two.fill(second)
    first.publish(REF, 1)
    second.publish(Ref.parse("two"), 1)
    usage = store.usage()
    assert usage.cached_bytes == len(shared) + 3 + 3 + 1000
    assert usage.free_bytes > 0


def test_chunks_of_other_models_are_copied(tmp_path: Path) -> None:
    old = model(1)
    opened = open_store(tmp_path)
    here = old.add(opened)
    old.fill(here, range(4))
    opened.close()
    opened = open_store(tmp_path)  # the old model isn't open, and it's only partly here
    renamed = {
        f"new/{p}": b"longer! " * 250 + d for p, d in old.files.items() if "weights" not in p
    }
    new = Model({**renamed, "w": b"x" * 1000 + old.files["weights-1.bin"]}, 1000)
    there = new.add(opened)
    got = there.copy_local()
    expected = {
        c for c in range(new.layout.chunk_count)
        if any(new.chunk(c) == old.chunk(o) for o in range(4))
    }  # fmt: skip
    assert {c for c in range(new.layout.chunk_count) if there.has_chunk(c)} == expected
    assert expected
    assert got == there.have_runs()
    new.assert_proved(there)
    opened.close()


def test_tags_and_generations(store: Store, tmp_path: Path) -> None:
    wanted = model()
    here = wanted.add(store)
    wanted.fill(here)
    here.publish(REF, 5)
    other = Ref.parse("team/llama:stable")
    here.publish(other, 2)
    models = tmp_path / "cache/models/team/llama"
    assert (models / "stable").readlink() == Path(f"@{wanted.digest}")
    assert store.tags_of(wanted.digest) == [other, REF]
    store.remove_tag(REF)
    assert store.tag_of(REF) is None
    assert store.generation_seen(REF) == 5
    assert not (models / "v1").exists()
    assert (models / "stable/config.json").exists()
    store.remove_tag(other)
    assert not models.exists(), "nothing of this name is left"
    assert store.generation_seen(Ref.parse("never")) == 0


def test_a_tag_moves_in_one_step(store: Store, tmp_path: Path) -> None:
    old, new = model(1), model(2)
    for each, generation in ((old, 1), (new, 2)):
        here = each.add(store)
        each.fill(here)
        here.publish(REF, generation)
    link = tmp_path / "cache/models/team/llama/v1"
    new.assert_tree(link)
    old.assert_tree(link.parent / f"@{old.digest}")
    assert store.prune().removed == [f"blake3:{old.digest}"]
    new.assert_tree(link)


def test_a_digest_pull_moves_no_tag(store: Store, tmp_path: Path) -> None:
    wanted = model()
    here = wanted.add(store)
    wanted.fill(here)
    path = here.publish(Ref.parse(f"team/llama@blake3:{wanted.digest}"))
    assert store.tags_of(wanted.digest) == []
    (row,) = [info.as_json() for info in store.models()]
    assert (row["namespace"], row["name"], row["tags"], row["refs"]) == ("team", "llama", [], [])
    assert row["ref"] == f"@blake3:{wanted.digest}"
    wanted.assert_tree(tmp_path / "cache/models" / path)
    assert here.publish() == ""


def test_publish_refuses_half_a_model(store: Store, tmp_path: Path) -> None:
    wanted = model()
    here = wanted.add(store)
    wanted.fill(here, [0, 1])
    with pytest.raises(P2PCacheError, match="isn't complete"):
        here.publish(REF, 1)
    assert not (tmp_path / "cache/models/team").exists()


def test_a_model_in_use_is_never_removed(store: Store, tmp_path: Path) -> None:
    wanted, other = model(1), model(2)
    here = wanted.add(store)
    wanted.fill(here)
    here.publish(REF, 1)
    there = other.add(store)
    other.fill(there, [0])
    here.pin()
    with pytest.raises(Conflict, match="in use"):
        store.remove_model(wanted.digest)
    kept = store.prune(all_unused=True, among={wanted.digest})
    assert kept.removed == []
    wanted.assert_tree(tmp_path / "cache/models/team/llama/v1")
    other.assert_proved(there)
    assert there.has_chunk(0)
    here.unpin()
    planned = store.prune(dry_run=True, all_unused=True)
    assert planned.removed == ["team/llama:v1", f"blake3:{other.digest}"] or planned.removed == [
        f"blake3:{other.digest}", "team/llama:v1"
    ]  # fmt: skip
    assert store.models()
    done = store.prune(all_unused=True)
    assert done == planned
    assert store.models() == []
    assert list((tmp_path / "cache/blobs").iterdir()) == []
    assert list((tmp_path / "cache/partial").iterdir()) == []
    with pytest.raises(NotFound):
        here.source(0)
    with pytest.raises(NotFound):
        there.begin(1)


def test_removing_one_model_keeps_the_others_blobs(store: Store, tmp_path: Path) -> None:
    shared = os.urandom(5000)
    one, two = Model({"a": shared, "b": b"1"}, 1000), Model({"a": shared, "b": b"2"}, 1000)
    for each, name in ((one, "one"), (two, "two")):
        here = each.add(store)
        each.fill(here)
        here.publish(Ref.parse(name), 1)
    reader = (tmp_path / "cache/models/library/one/latest/a").open("rb")
    assert store.remove_model(one.digest) == 4096, "the shared blob stays"
    assert reader.read() == shared, "who reads goes on reading"
    reader.close()
    assert store.get(one.digest) is None
    two.assert_tree(tmp_path / "cache/models/library/two/latest")
    left = store.get(two.digest)
    assert left is not None
    two.assert_proved(left)
    assert store.remove_model(one.digest) == 0
    assert store.remove_model(two.digest) > 5000


def test_prune_removes_unnamed_models_and_blobs(store: Store, tmp_path: Path) -> None:
    wanted = model()
    here = wanted.add(store)
    wanted.fill(here)
    here.publish(REF, 1)
    store.close()
    stray = tmp_path / "cache/blobs" / ("ab" * 32)
    stray.write_bytes(b"stray")
    (tmp_path / "cache/blobs/README").write_text("not ours: left alone")
    again = open_store(tmp_path)
    assert again.prune().removed == [f"unnamed blob {'ab' * 32}"]
    assert not stray.exists()
    assert (tmp_path / "cache/blobs/README").exists()
    again.close()


def test_removal_waits_for_running_writers(store: Store) -> None:
    wanted = model()
    here = wanted.add(store)
    writer = here.begin(0)
    assert writer is not None
    data = memoryview(wanted.chunk(0))
    writer.update(data)
    store.remove_model(wanted.digest)
    writer.put(0, data)
    with pytest.raises(NotFound, match="removed"):
        writer.finish()
    again = wanted.add(store)
    assert again.have_runs() == 0
    wanted.fill(again)
    wanted.assert_proved(again)


def test_sources_outlive_the_cache_of_open_files(store: Store) -> None:
    at_first = open_fds()  # other tests of this process may hold some
    wanted = Model({f"f{i}": b"%d" % i for i in range(300)}, 1000)
    here = wanted.add(store)
    wanted.fill(here)
    here.publish(REF, 1)
    before = open_fds()
    held = [here.source(c) for c in range(wanted.layout.chunk_count)]
    assert all(os.pread(s.fd, s.length, s.offset) == wanted.chunk(c) for c, s in enumerate(held))
    assert open_fds() >= before + 30
    held.clear()
    assert open_fds() <= before + 256
    store.remove_model(wanted.digest)
    assert open_fds() < at_first + 60


def test_no_path_leaves_the_models_directory(store: Store, tmp_path: Path) -> None:
    wanted = model()
    here = wanted.add(store)
    wanted.fill(here)
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "cache/models/team").symlink_to(outside)
    with pytest.raises(P2PCacheError):
        here.publish(REF, 1)
    assert list(outside.iterdir()) == []


def test_threads_fill_one_model_together(store: Store, tmp_path: Path) -> None:
    wanted = Model({f"f{i}": os.urandom(20_000) for i in range(8)}, 500)
    here = wanted.add(store)
    errors: list[BaseException] = []

    def work(part: int) -> None:
        try:
            wanted.fill(here, range(part % 4, wanted.layout.chunk_count, 4))
        except BaseException as error:  # noqa: BLE001  told to the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        here.flush()
    for thread in threads:
        thread.join()
    assert errors == []
    here.publish(REF, 1)
    wanted.assert_tree(tmp_path / "cache/models/team/llama/v1")
    assert store._writers._slots == {}


def test_another_process_gets_the_lock_when_we_die(tmp_path: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path; from p2pcache.io.models.store import Store\n"
        "Store.open(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "cache")], check=False)
    open_store(tmp_path).close()
