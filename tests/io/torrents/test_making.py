"""Torrents that we make: the same bytes on every node, and what a client needs is in them."""

from pathlib import Path

import pytest

from p2pcache.io.torrents.making import (
    GiB,
    MiB,
    make_torrent,
    piece_bytes,
    web_seed_url,
    with_sources,
)
from p2pcache.io.torrents.metainfo import read_metainfo
from tests.io.torrents.kit import FILES, lt, ours, published

# A torrent that somebody has must stay the torrent that we seed: these never change.
INFO_HASHES = {
    False: "0d35b98cbc1e03602e2a9164eafdd9ca9f93e7fa68ad578027b665dce2cee59f",
    True: "157d1c80ded4bfb2a65ca7bd8200696b05f60e16",
}


@pytest.mark.parametrize("v1", [False, True])
def test_every_node_and_release_makes_the_same_torrent(tmp_path: Path, v1: bool) -> None:
    seen: list[tuple[int, int]] = []
    digest, manifest = published(tmp_path)
    made = make_torrent(tmp_path, manifest, lambda *at: seen.append(at), v1=v1)
    (tmp_path / "other").mkdir()
    published(tmp_path / "other", dict(reversed(FILES.items())))
    assert make_torrent(tmp_path / "other", manifest, v1=v1) == made
    found = read_metainfo(made)
    assert found.info_hash == INFO_HASHES[v1]
    assert found.digest == digest
    assert found.manifest == manifest
    assert {file.path: file.size for file in found.files} == {k: len(v) for k, v in FILES.items()}
    assert seen[-1] == (found.size_bytes, found.size_bytes)


def test_sources_leave_the_info_hash(tmp_path: Path) -> None:
    made = ours(tmp_path)
    seed = web_seed_url("http://a:1/", "team", "llama")
    told = with_sources(made, "http://a:1/announce", seed)
    assert lt.bencode(lt.bdecode(told)) == told  # sorted, as clients want it
    found, before = read_metainfo(told), read_metainfo(made)
    assert (found.info_hash, found.manifest) == (before.info_hash, before.manifest)
    assert found.trackers == ("http://a:1/announce",)
    assert found.web_seeds == ("http://a:1/team/llama/",)
    assert with_sources(made, "", "") == made


def test_pieces_grow_with_the_model_and_stay_few() -> None:
    sizes = [1, MiB, 63 * MiB, 64 * MiB, GiB - 1, GiB, 64 * GiB - 1, 64 * GiB, 2048 * GiB]
    pieces = [piece_bytes(size) for size in sizes]
    assert pieces == sorted(pieces)
    assert all(piece & (piece - 1) == 0 for piece in pieces)  # BEP 52 wants powers of two
    assert [piece // MiB for piece in pieces[-4:]] == [8, 8, 16, 16]
    assert max(-(-size // piece) for size, piece in zip(sizes, pieces, strict=True)) <= 131_072
