"""Strangers' torrents: each is refused with a reason, before anything is asked for or written."""

import zlib
from pathlib import Path
from typing import Any

import pytest

from p2pcache.errors import IntegrityError, InvalidTorrent
from p2pcache.io.torrents import metainfo
from p2pcache.io.torrents.metainfo import OUR_KEY, read_metainfo
from tests.io.torrents.kit import lt, of_bytes, ours, torrent, v1_info


def file(*path: bytes, length: Any = 5, **more: Any) -> dict[bytes, Any]:
    return {b"path": list(path), b"length": length, **{k.encode(): v for k, v in more.items()}}


GOOD = v1_info([file(b"a"), file(b"sub", b"b")])
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no torrent": b"hello",
    "a list": b"l4:infoe",
    "cut off": torrent(GOOD)[:-3],
    "deep": b"d1:a" * 100_000,
    "deep in info": b"d4:info" + b"l" * 200_000 + b"e" * 200_001,
    "a string that claims gigabytes": b"d4:info99999999999:abce",
    "no info": b"d3:fooi1ee",
    "info is a number": b"d4:infoi7ee",
    "up": torrent(v1_info([file(b"..", b"a")])),
    "up in the name": torrent(v1_info([file(b"a")], name=b"..")),
    "absolute": torrent(v1_info([file(b"/etc", b"passwd")])),
    "a slash in the name": torrent(v1_info([file(b"a")], name=b"x/../../y")),
    "a slash in a part": torrent(v1_info([file(b"sub/../../a")])),
    "a backslash": torrent(v1_info([file(b"..\\a")])),
    "here": torrent(v1_info([file(b".", b"a")])),
    "an empty part": torrent(v1_info([file(b"", b"a")])),
    "no path": torrent(v1_info([file()])),
    "a NUL": torrent(v1_info([file(b"a\0b")])),
    "an escape of terminals": torrent(v1_info([file(b"a\x1b[2Jb")])),
    "text that runs backwards": torrent(v1_info([file("a\u202eb".encode())])),
    "no UTF-8": torrent(v1_info([file(b"\xff\xfe")])),
    "a long name": torrent(v1_info([file(b"a" * 300)])),
    "a link": torrent(v1_info([file(b"a", attr=b"l", **{"symlink path": [b"etc"]}), file(b"b")])),
    "a link in other clothes": torrent(v1_info([file(b"a", **{"symlink path": [b"b"]}), file(b"b")])),
    "one path twice": torrent(v1_info([file(b"a"), file(b"a")])),
    "a folder that is a file": torrent(v1_info([file(b"a"), file(b"a", b"b")])),
    "a negative size": torrent(v1_info([file(b"a", length=-5)])),
    "a size that overflows": torrent(v1_info([file(b"a", length=2**63 - 1), file(b"b", length=2**63 - 1)])),
    "a size of 65 TiB": torrent(v1_info([file(b"a", length=65 << 40)])),
    "a size that is text": torrent(v1_info([file(b"a", length=b"5")])),
    "no pieces": torrent(GOOD | {b"pieces": b""}),
    "pieces of nothing": torrent(GOOD | {b"piece length": 0}),
    "pieces of less than nothing": torrent(GOOD | {b"piece length": -1}),
    "half a hash": torrent(GOOD | {b"pieces": bytes(30)}),
    "more pieces than bytes": torrent(GOOD | {b"pieces": bytes(20_000)}),
    "files that are none": torrent(GOOD | {b"files": {b"a": 5}}),
    "no files": torrent(v1_info([])),
    "a future version": torrent(GOOD | {b"meta version": 9}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_torrents_are_refused(name: str) -> None:
    with pytest.raises(InvalidTorrent) as caught:
        read_metainfo(HOSTILE[name])
    assert len(str(caught.value)) < 1500
    assert str(caught.value).isprintable()


def test_the_good_one_is_taken() -> None:
    """So the others are refused for what is wrong with them."""
    found = read_metainfo(torrent(GOOD))
    assert [file.path for file in found.files] == ["a", "sub/b"]
    assert (found.name, found.digest, found.manifest, found.folder) == ("model", "", b"", True)
    assert read_metainfo(of_bytes("w.bin", b"x" * 40_000)).folder is False


def test_a_hundred_thousand_files_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metainfo, "MAX_FILES", 3)
    many = v1_info([file(b"%d" % number, length=1) for number in range(4)])
    with pytest.raises(InvalidTorrent, match="more than 3 files"):
        read_metainfo(torrent(many))


def test_a_million_files_end_early() -> None:
    entry = b"d6:lengthi0e4:pathl1:aee"
    data = b"d4:infod5:filesl" + entry * 1_000_000 + b"e4:name1:m12:piece lengthi16384e6:pieces0:ee"
    with pytest.raises(InvalidTorrent):
        read_metainfo(data)


def test_a_file_of_over_64_mib_is_none() -> None:
    with pytest.raises(InvalidTorrent, match="64 MiB"):
        read_metainfo(b"d" + bytes(64 << 20))


def test_sources_are_counted() -> None:
    found = read_metainfo(
        of_bytes("w", b"x", **{"url-list": [f"http://h{n}/".encode() for n in range(500)]})
    )
    assert len(found.web_seeds) == metainfo.MAX_SOURCES


# -- torrents of models ----------------------------------------------------------------------------


def changed(data: bytes, **more: Any) -> bytes:
    return bytes(
        lt.bencode(lt.bdecode(data) | {key.encode(): value for key, value in more.items()})
    )


def test_the_manifest_in_a_torrent_must_be_the_one_that_it_is_named_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metainfo, "MAX_MANIFEST_BYTES", 1 << 20)
    good = ours(tmp_path)
    (tmp_path / "other").mkdir()
    other = lt.bdecode(ours(tmp_path / "other", {"x": b"y"}))[OUR_KEY]
    packed = lt.bdecode(good)[OUR_KEY]
    bomb = zlib.compress(bytes(2 << 20), 9)
    for wrong in (other, b"no zlib", packed[:-9], bomb):
        with pytest.raises(IntegrityError):
            read_metainfo(changed(good, p2pcache=wrong))
    assert read_metainfo(changed(good, p2pcache=7)).manifest == b""


def test_versions_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    top = lt.bdecode(ours(tmp_path))
    info = top[b"info"]
    entries = info[b"files"]
    for number, entry in enumerate(entries):
        for wrong in (
            entry | {b"path": [b"evil"]},
            entry | {b"attr": b"l"},
            entry | {b"length": entry[b"length"] + 1},
        ):
            lied = [*entries[:number], wrong, *entries[number + 1 :]]
            if b"p" in entry.get(b"attr", b"") and b"evil" in wrong[b"path"]:
                continue  # padding may have any name
            with pytest.raises(InvalidTorrent):
                read_metainfo(changed(lt.bencode(top), info=info | {b"files": lied}))


def test_a_link_in_a_tree_is_refused(tmp_path: Path) -> None:
    top = lt.bdecode(ours(tmp_path))
    info = top[b"info"]
    for name in (b"files", b"pieces"):
        del info[name]
    assert read_metainfo(lt.bencode(top)).digest  # version 2 alone is good
    info[b"file tree"][b"config.json"][b""] |= {b"attr": b"l", b"symlink path": [b"etc"]}
    with pytest.raises(InvalidTorrent, match="link"):
        read_metainfo(lt.bencode(top))
