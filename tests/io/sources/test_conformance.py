"""What every source does: lists, reads ranges, and gives only the bytes that were listed."""

import hashlib
import random
import time
from pathlib import Path

import pytest

from p2pcache.core.format.manifest import digest_of, encode, make_manifest
from p2pcache.errors import NotFound, OriginChanged
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.imports.import_folder import ImportFolder
from p2pcache.io.imports.importing import Importing
from p2pcache.io.sources.base import SourceFile
from p2pcache.io.sources.source import Source
from tests.io.sources.conftest import Filled

DATA = random.Random(2).randbytes(2_500_000)
FILES = {
    "config.json": b"{}", "model.bin": DATA, "sub/dir/vocab \u00fc + 100%.txt": b"one\ntwo\n",
    "sub/#1?.txt": b"x",
}  # fmt: skip


def read(source: Source, file: SourceFile, start: int = 0, length: int | None = None) -> bytes:
    got = bytearray()
    buffer = memoryview(bytearray(100_000))
    with source.open_file(file, start, file.size - start if length is None else length) as body:
        while count := body.readinto(buffer):
            got += buffer[:count]
    return bytes(got)


def test_it_lists_and_reads(filled: Filled) -> None:
    for name, data in FILES.items():
        filled.write(name, data)
    found = {file.path: file for file in filled.source.files(filled.place)}
    assert {path: file.size for path, file in found.items()} == {
        p: len(d) for p, d in FILES.items()
    }
    assert all(file.validator for file in found.values())
    for path, file in found.items():
        assert read(filled.source, file) == FILES[path]
        assert file.sha256 in (b"", hashlib.sha256(FILES[path]).digest())
    assert read(filled.source, found["model.bin"], 1_000_001, 77) == DATA[1_000_001:1_000_078]


def test_a_missing_place_and_a_missing_file(filled: Filled) -> None:
    filled.write("config.json", b"{}")
    (file,) = filled.source.files(filled.place)
    with pytest.raises(NotFound):
        filled.source.files("nothing/here")
    gone = file._replace(key=file.key.replace("config.json", "other.json"))
    if gone != file:  # keys of a registry have no names
        with pytest.raises(NotFound):
            read(filled.source, gone)


def test_other_bytes_than_those_that_were_listed_are_refused(filled: Filled) -> None:
    if not filled.changes:
        pytest.skip("its keys name bytes")
    filled.write("model.bin", DATA)
    (file,) = filled.source.files(filled.place)
    filled.write("model.bin", DATA[:-1])
    with pytest.raises(OriginChanged, match="changed at the source; import it again"):
        read(filled.source, file, 10, 10)
    time.sleep(filled.grain_s)
    filled.write("model.bin", DATA[::-1])
    with pytest.raises(OriginChanged):
        read(filled.source, file, 10, 10)


def test_an_import_is_the_manifest_of_a_push(filled: Filled, tmp_path: Path) -> None:
    model = tmp_path / "model"
    for name, data in FILES.items():
        filled.write(name, data)
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_bytes(data)
    files = filled.source.files(filled.place)
    folder = ImportFolder(tmp_path / "import")
    hashed = Importing(filled.source, files, folder, keep=True).read_files()
    folder.close()
    known = [file._replace(sha256=b"") for file in hashed]
    pushed, _ = index_directory(model)
    assert digest_of(encode(make_manifest(known))) == digest_of(encode(pushed))
    for file, one in zip(files, hashed, strict=True):
        assert one.sha256 == file.sha256
        assert folder.part(file.path).read_bytes() == FILES[file.path]
