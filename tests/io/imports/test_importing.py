"""Imports that are killed go on where they were; each byte is read once."""

import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.core.format.chunking import MiB
from p2pcache.core.format.manifest import File, make_manifest
from p2pcache.errors import Conflict, OriginChanged, OriginUnavailable, P2PCacheError, UsageError
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.imports import importing
from p2pcache.io.imports.file_hasher import FileHasher
from p2pcache.io.imports.import_folder import ImportFolder
from p2pcache.io.imports.importing import Importing
from p2pcache.io.origins.base import Body
from p2pcache.io.sources.base import NoRanges, SourceFile
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Source
from tests.io.sources.kit import Answer, Web, serving


def safetensors(tensors: list[int], pad: int = 0) -> bytes:
    """A valid file of tensors of so many bytes."""
    entries, at = [], 0
    for number, size in enumerate(tensors):
        entries.append(
            f'"t{number}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{at},{at + size}]}}'
        )
        at += size
    header = ("{" + ",".join(entries) + " " * pad + "}").encode()
    return struct.pack("<Q", len(header)) + header + random.Random(3).randbytes(at)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.safetensors", safetensors([300_000, 10, 700_000], pad=777)),
        ("cut.safetensors", safetensors([300_000])[:-5]),
        ("short.safetensors", b"1234"),
        ("empty.safetensors", b""),
        ("wild.safetensors", b"\xff" * 300_000),
        ("plain.bin", random.Random(4).randbytes(600_001)),
        ("empty", b""),
    ],
)
@pytest.mark.parametrize("piece", [1 * MiB, 100_003, 7])
def test_a_hasher_cuts_and_hashes_as_an_index_does(
    tmp_path: Path, name: str, data: bytes, piece: int
) -> None:
    if piece == 7:
        data = data[:20_000]
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / name).write_bytes(data)
    hasher = FileHasher(name, len(data), sha256=True)
    view = memoryview(data)
    for start in range(0, len(data), piece):
        hasher.update(view[start : start + piece])
    expected, _ = index_directory(tmp_path / "m", sha256=True)
    assert make_manifest([hasher.file()]) == expected


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(Web()) as one:
        for number in range(3):
            one.files[f"/m/{number}.bin"] = random.Random(number).randbytes(3_000_000)
        one.files["/m/all.list"] = b"0.bin\n1.bin\n2.bin\n"
        yield one


def ranges(web: Web, path: str) -> list[str]:
    return [
        headers.get("range", "") for method, p, headers in web.seen if (method, p) == ("GET", path)
    ]


@pytest.mark.parametrize(
    ("keep", "limit"),
    [(True, {"DURABLE_BYTES": 1 * MiB}), (True, {"DURABLE_S": 0.0}), (False, {})],
    ids=["bytes", "time", "nothing kept"],
)
def test_a_failed_import_goes_on_with_what_it_lacks(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool, limit: dict[str, float]
) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(importing, name, value)
    source = Source("s", SourceSettings(url=web.url))
    source._policy.retry_for_s = 0.0
    files = source.files("m/all.list")
    done: list[str] = []

    def spoilt(path: str, headers: dict[str, str]) -> Answer | None:
        if path != "/m/1.bin" or "range" not in headers:
            return None
        while len(done) < 2:  # the others first
            time.sleep(0.01)
        status, more, data = web.answer(path, headers)
        return (
            status,
            {**more, "Content-Length": str(len(data)), "Connection": "close"},
            data[:2_500_000],
        )

    web.spoil = spoilt
    folder = ImportFolder(tmp_path / "f")
    noted = folder.on_whole

    def on_whole(file: SourceFile, hashed: File) -> None:
        noted(file, hashed)
        done.append(file.path)

    monkeypatch.setattr(folder, "on_whole", on_whole)
    with pytest.raises(OriginUnavailable):
        Importing(source, files, folder, keep=keep).read_files()
    folder.close()
    web.spoil = lambda _path, _headers: None
    web.seen.clear()
    again = ImportFolder(tmp_path / "f")
    trying = Importing(source, files, again, keep=keep)
    hashed = trying.read_files()
    assert ranges(web, "/m/0.bin") == ranges(web, "/m/2.bin") == []
    first = 2 * MiB if keep else 0
    assert ranges(web, "/m/1.bin") == [f"bytes={first}-2999999"]
    assert trying.progress.bytes_read == 3_000_000 - first
    assert trying.progress.bytes_done == trying.progress.bytes_total == 9_000_000
    model = tmp_path / "m"
    model.mkdir()
    for number in range(3):
        (model / f"{number}.bin").write_bytes(web.files[f"/m/{number}.bin"])
    assert make_manifest(hashed) == index_directory(model)[0]
    again.close()


def test_a_file_of_a_server_without_ranges_begins_anew(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "DURABLE_BYTES", 1 * MiB)
    web.ranges = False
    source = Source("s", SourceSettings(url=web.url))
    source._policy.retry_for_s = 0.0
    (file,) = source.files("m/1.bin")
    sent = [2_500_000, 3_000_000]  # of the file, by the first answer and the second

    def whole(path: str, headers: dict[str, str]) -> Answer:
        status, more, data = web.answer(path, headers)
        more |= {"Content-Length": str(len(data)), "Connection": "close"}
        return status, more, data[: sent.pop(0) if len(sent) > 1 else sent[0]]

    web.spoil = whole
    folder = ImportFolder(tmp_path / "f")
    with pytest.raises(OriginUnavailable):
        Importing(source, [file], folder, keep=True).read_files()
    assert folder.durable(file) == 2 * MiB
    trying = Importing(source, [file], folder, keep=True)
    (hashed,) = trying.read_files()
    assert hashed.size == trying.progress.bytes_done == trying.progress.bytes_read == 3_000_000
    assert folder.part(file.path).read_bytes() == web.files["/m/1.bin"]
    folder.close()


@pytest.mark.parametrize(
    ("more", "says"),
    [({}, OriginChanged), ({"Content-Length": ""}, UsageError)],
    ids=["another length", "no length"],
)
def test_a_whole_file_that_is_not_the_listed_one(
    web: Web, tmp_path: Path, more: dict[str, str], says: type[P2PCacheError]
) -> None:
    """Both were told as a connection that broke in the middle of a file."""
    web.ranges = False
    source = Source("s", SourceSettings(url=web.url))
    (file,) = source.files("m/1.bin")
    web.files["/m/1.bin"] = bytes(file.size - 1)
    web.spoil = lambda path, _: (200, more, web.files[path])
    folder = ImportFolder(tmp_path / "f")
    with pytest.raises(says) as refused:
        Importing(source, [file], folder, keep=True).read_files()
    assert "broke" not in str(refused.value)
    assert not isinstance(refused.value, NoRanges)
    folder.close()


class Trickle(Body):
    """A byte at a time, each within the time that a byte may take."""

    def readinto(self, buffer: memoryview) -> int:
        time.sleep(0.02)
        buffer[:1] = b"x"
        return 1

    def close(self) -> None:
        pass


def test_a_source_that_trickles_is_given_up(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else gets to import the model while it is being read."""
    monkeypatch.setattr(importing, "SLOW_S", 0.1)
    source = Source("s", SourceSettings(url=web.url))
    files = source.files("m/0.bin")
    monkeypatch.setattr(source, "open_file", lambda *_: Trickle())
    folder = ImportFolder(tmp_path / "f")
    with pytest.raises(OriginUnavailable, match="sends less than 1 MiB in 0 s"):
        Importing(source, files, folder, keep=True).read_files()
    folder.close()


def test_what_changed_meanwhile_is_read_anew(web: Web, tmp_path: Path) -> None:
    source = Source("s", SourceSettings(url=web.url))
    folder = ImportFolder(tmp_path / "f")
    first = Importing(source, source.files("m/all.list"), folder, keep=True).read_files()
    web.files["/m/1.bin"] = b"new"
    web.seen.clear()
    second = Importing(source, source.files("m/all.list"), folder, keep=True).read_files()
    assert second[0] == first[0]
    assert second[1].size == 3
    assert folder.part("1.bin").read_bytes() == b"new"
    assert ranges(web, "/m/0.bin") == []
    with pytest.raises(Conflict):
        ImportFolder(tmp_path / "f")
    folder.close()


def test_a_torn_journal_counts_up_to_its_last_line(web: Web, tmp_path: Path) -> None:
    source = Source("s", SourceSettings(url=web.url))
    files = source.files("m/all.list")
    folder = ImportFolder(tmp_path / "f")
    Importing(source, files, folder, keep=True).read_files()
    folder.close()
    journal = tmp_path / "f/journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    folder = ImportFolder(tmp_path / "f")
    assert [folder.whole(file) is not None for file in files].count(True) == 2
    assert journal.read_bytes() == b"".join(lines[:2])
    folder.close()


KILLED = """
import sys
from pathlib import Path
from p2pcache.io.imports import importing
from p2pcache.io.imports.import_folder import ImportFolder
from p2pcache.io.sources.base import NoRanges, SourceFile
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Source
importing.DURABLE_BYTES = 1 << 20
source = Source("s", SourceSettings(url=sys.argv[1]))
importing.Importing(source, source.files("m/all.list"), ImportFolder(Path(sys.argv[2])), keep=True).read_files()
"""


def test_killed_in_the_middle(web: Web, tmp_path: Path) -> None:
    whole = web.files["/m/1.bin"]

    def slow(path: str, headers: dict[str, str]) -> Answer | None:
        if path == "/m/1.bin" and "range" in headers:
            status, more, data = web.answer(path, headers)
            return status, {**more, "Content-Length": str(len(data))}, data[:2_200_000]
        return None

    def hung(path: str, headers: dict[str, str]) -> Answer | None:
        if path == "/m/1.bin" and headers.get("range", "").startswith("bytes=2"):
            time.sleep(30)
        return slow(path, headers)

    web.spoil = hung
    process = subprocess.Popen([sys.executable, "-c", KILLED, web.url, str(tmp_path / "f")])
    journal = tmp_path / "f/journal.jsonl"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        lines = journal.read_bytes().splitlines() if journal.exists() else []
        if any(b'"1.bin"' in line and b'"durable":2097152' in line for line in lines):
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    web.spoil = lambda _path, _headers: None
    web.seen.clear()
    source = Source("s", SourceSettings(url=web.url))
    folder = ImportFolder(tmp_path / "f")
    Importing(source, source.files("m/all.list"), folder, keep=True).read_files()
    assert ranges(web, "/m/1.bin") == ["bytes=2097152-2999999"]
    assert folder.part("1.bin").read_bytes() == whole
    folder.close()
