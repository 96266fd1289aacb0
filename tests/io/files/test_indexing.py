"""A directory becomes a manifest: same files, same digest, flat memory, nothing skipped unsaid."""

import os
import random
import resource
import socket
import subprocess
import time
from pathlib import Path

import pytest

from p2pcache.core.format.manifest import decode, digest_of, encode
from p2pcache.errors import NotAllowed, NotFound, UsageError
from p2pcache.io.files import indexing
from p2pcache.io.files.indexing import Progress, find_files, index_directory
from tests.core import golden_kit
from tests.io.models.store_kit import REF, Model, model, open_store

MB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    made.mkdir()
    return made


def write(folder: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def test_a_directory_gives_the_manifest_of_its_bytes(folder: Path) -> None:
    files = {**model().files, "big.bin": random.Random(1).randbytes(700_000)}
    write(folder, dict(files))
    (folder / "left-out-because-empty").mkdir()
    seen: list[Progress] = []
    manifest, sources = index_directory(folder, progress=seen.append)
    assert encode(manifest) == Model(files).encoded
    assert sources == {p: (folder / p).resolve() for p in files}
    total = sum(map(len, files.values()))
    assert seen[-1] == (total, total, len(files))
    assert [s.bytes_done for s in seen] == sorted(s.bytes_done for s in seen)


def test_what_a_file_system_made_is_no_part_of_the_model(folder: Path) -> None:
    write(folder, {"a": b"1", "lost+found/#12": b"x", "deep/lost+found/b": b"2"})
    assert set(find_files(folder)) == {"a", "deep/lost+found/b"}
    assert set(index_directory(folder)[1]) == {"a", "deep/lost+found/b"}


@pytest.mark.parametrize("name", golden_kit.NAMES)
def test_golden(folder: Path, name: str) -> None:
    golden = golden_kit.load(name)
    write(folder, golden.files)
    assert encode(index_directory(folder)[0]) == golden.manifest


def test_the_digest_depends_on_nothing_but_names_and_bytes(tmp_path: Path) -> None:
    digests = set()
    for number, order in enumerate((1, -1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, dict(list(model().files.items())[::order]))
        os.utime(folder / "config.json", (number, number))
        (folder / "config.json").chmod(0o600 + number)
        for workers in (1, 4):
            digests.add(digest_of(encode(index_directory(folder, workers=workers)[0])))
    assert len(digests) == 1


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    """A Hugging Face snapshot: links into a folder of blobs beside it."""
    write(tmp_path, {"blobs/aa": b"weights", "blobs/bb": b"{}"})
    snapshot = tmp_path / "snapshots/main"
    (snapshot / "sub").mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/aa")
    (snapshot / "sub/config.json").symlink_to(tmp_path / "blobs/bb")
    manifest, sources = index_directory(snapshot)
    assert [f.path for f in manifest.files] == ["model.safetensors", "sub/config.json"]
    assert sources["model.safetensors"] == (tmp_path / "blobs/aa").resolve()
    alias = tmp_path / "alias"
    alias.symlink_to(snapshot)
    assert index_directory(alias)[0] == manifest


def test_irregular_files_are_refused_by_name(folder: Path) -> None:
    write(folder, {"ok": b"1"})
    os.mkfifo(folder / "pipe")
    with pytest.raises(UsageError, match="pipe is a named pipe"):
        index_directory(folder)
    (folder / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "sock"))
        with pytest.raises(UsageError, match="sock is a socket"):
            index_directory(folder)
    (folder / "sock").unlink()
    (folder / "sub").mkdir()
    (folder / "sub/device").symlink_to("/dev/null")
    with pytest.raises(UsageError, match="sub/device is a device"):
        index_directory(folder)
    (folder / "sub/device").unlink()
    (folder / "nowhere").symlink_to("gone")
    with pytest.raises(UsageError, match="nowhere is a link to nothing"):
        index_directory(folder)
    (folder / "nowhere").unlink()
    (folder / "up").symlink_to("..")
    with pytest.raises(UsageError, match="up is a link to a directory"):
        index_directory(folder)


def test_links_in_a_circle_are_named(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(UsageError, match="circle is a link to nothing"):
        index_directory(tmp_path)


@pytest.mark.parametrize("name", [b"new\nline", b"back\\slash", b"\xff\xfe", b"esc\x1b[31m"])
def test_names_that_cannot_be_in_a_model(folder: Path, name: bytes) -> None:
    with open(os.fsencode(folder) + b"/" + name, "wb"):  # noqa: PTH123  pathlib takes no bytes
        pass
    with pytest.raises(UsageError, match="rename the file"):
        index_directory(folder)


def test_names_that_some_file_system_would_merge(folder: Path) -> None:
    write(folder, {"README": b"1", "readme": b"2"})
    with pytest.raises(UsageError, match="same name on some file systems"):
        index_directory(folder)


def test_directories_that_are_left_out(folder: Path) -> None:
    write(folder, {"a": b"1", ".git/config": b"x", "sub/.git": b"gitdir: x",
                   ".cache/huggingface/download/a.lock": b"", ".cache/other": b"kept",
                   ".gitattributes": b"kept", "sub/.cache/huggingface/x": b"kept"})  # fmt: skip
    assert [f.path for f in index_directory(folder)[0].files] == [
        ".cache/other", ".gitattributes", "a", "sub/.cache/huggingface/x",
    ]  # fmt: skip


def test_no_directory_no_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no files"):
        index_directory(folder)
    with pytest.raises(NotFound):
        index_directory(folder / "missing")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="not a directory"):
        index_directory(tmp_path / "file")


def test_too_many_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pcache.io.files.indexing.MAX_FILES", 3)
    write(folder, {f"f{i}": b"" for i in range(4)})
    with pytest.raises(UsageError, match="more than 3 files"):
        index_directory(folder)


def test_a_file_that_changes_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, {"a.bin": bytes(8 * MB), "b.bin": bytes(100)})

    found = sorted(indexing._walk(folder))
    (folder / "b.bin").write_bytes(b"other")
    with pytest.raises(UsageError, match=r"b\.bin changed while it was read"):
        indexing._Indexing(found, None, sha256=False).hash_files(1)
    checked = indexing._Reading.check_unchanged

    def written_to_before_it_is_checked(file: indexing._Reading) -> None:
        with (folder / "a.bin").open("ab") as writer:
            writer.write(b"x" * 10)
        checked(file)

    monkeypatch.setattr(indexing._Reading, "check_unchanged", written_to_before_it_is_checked)
    with pytest.raises(UsageError, match=r"a\.bin changed"):
        index_directory(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(folder: Path) -> None:
    write(folder, {"secret": b"1"})
    (folder / "secret").chmod(0)
    with pytest.raises(NotAllowed, match="secret"):
        index_directory(folder)


def test_safetensors_files_are_cut_at_tensors(folder: Path) -> None:
    numpy = pytest.importorskip("numpy")
    from safetensors.numpy import save_file

    tensors = {"a": numpy.arange(200_000, dtype="f4"), "b": numpy.arange(90_000, dtype="f4")}
    save_file(tensors, folder / "one.safetensors")
    save_file(tensors, folder / "two.safetensors", metadata={"much": "longer " * 50})
    write(folder, {"plain.bin": (folder / "one.safetensors").read_bytes()})
    write(folder, {"broken.safetensors": b"\x10\0\0\0\0\0\0\0{ not json      " + bytes(300_000)})
    by_path = {f.path: f for f in index_directory(folder)[0].files}
    one, two = list(by_path["one.safetensors"].chunks), list(by_path["two.safetensors"].chunks)
    assert one[0] != two[0]
    assert one[1:] == two[1:], "a longer header shifts nothing"
    assert by_path["plain.bin"].lengths[0] == 256 * 1024
    assert by_path["broken.safetensors"].lengths[0] == 256 * 1024


def test_a_sparse_file_is_not_read(folder: Path) -> None:
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(100 * 10**9)
        file.seek(51 * 10**9)
        file.write(b"data")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()  # other work may run beside us
    manifest, _ = index_directory(folder)
    assert time.process_time() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    assert len({c.digest for c in manifest.files[0].chunks}) == 3
    assert manifest.size_bytes == 100 * 10**9


def test_holes_hash_as_the_zeros_they_read_as(folder: Path) -> None:
    with (folder / "a").open("wb") as file:
        file.seek(3 * MB + 5)
        file.write(b"x")
        file.truncate(6 * MB)
    write(folder, {"b": (folder / "a").read_bytes()})
    first, second = index_directory(folder)[0].files
    assert first.digests == second.digests


@pytest.mark.slow
def test_ten_thousand_small_files_from_directory_to_tree(tmp_path: Path) -> None:
    files = {f"d{i % 97}/f{i}.json": b'{"n": %d}' % (i // 2) for i in range(10_000)}
    folder = tmp_path / "source"
    folder.mkdir()
    write(folder, dict(files))
    started = time.process_time()
    manifest, _ = index_directory(folder)
    indexed = time.process_time()
    wanted = Model(files)
    assert encode(manifest) == wanted.encoded
    assert decode(wanted.encoded, wanted.digest) == manifest
    store = open_store(tmp_path)
    begun = time.process_time()
    here = wanted.add(store)
    wanted.fill(here)
    path = here.publish(REF, 1)
    ended = time.process_time()
    wanted.assert_tree(tmp_path / "cache/models" / path)
    assert indexed - started < 8
    assert ended - begun < 12
    store.close()
    again = time.process_time()
    store = open_store(tmp_path)
    whole = store.get(wanted.digest)
    assert whole is not None
    assert whole.complete
    assert time.process_time() - again < 3
    store.close()


def test_sha256_is_what_the_standard_tool_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "_UNIT_BYTES", 300_000)
    files = {"empty": b"", "big.bin": random.Random(1).randbytes(1_000_001), "small/one": b"1"}
    write(folder, files)
    os.truncate(folder / "empty", 2_000_000)  # a hole
    seen: list[Progress] = []
    manifest, sources = index_directory(folder, sha256=True, progress=seen.append)
    said = subprocess.run(
        ["sha256sum", *(sources[file.path] for file in manifest.files)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = [line.split()[0] for line in said.stdout.splitlines()]
    assert [file.sha256.hex() for file in manifest.files] == expected
    assert seen[-1].bytes_done == seen[-1].bytes_total
    plain, _ = index_directory(folder)
    assert [f._replace(sha256=b"") for f in manifest.files] == list(plain.files)


def test_a_name_that_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    """What `Path.exists` doesn't take for "isn't there" was called a bug."""
    with pytest.raises(UsageError, match="name too long"):
        index_directory(tmp_path / ("n" * 300))
