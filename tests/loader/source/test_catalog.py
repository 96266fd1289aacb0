"""The table of tensors, read while bytes still arrive."""

import threading
from pathlib import Path

import pytest

import p2pcache
from p2pcache.errors import (
    InvalidHeader,
)
from p2pcache.loader import session
from tests.loader.loader_kit import (
    SlowSource,
    Spec,
    soon,
    write,
    write_index,
)


def test_headers_that_claim_too_much_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2pcache.loader.source.catalog.MAX_ALL_HEADERS_BYTES", 150)
    for i in range(3):
        write(tmp_path / f"{i}.safetensors", [Spec(f"t{i}", "U8", (1,))])
    with pytest.raises(InvalidHeader, match="claim"):
        p2pcache.load(tmp_path)


def test_headers_are_asked_for_beside_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = ["m-1.safetensors", "m-2.safetensors"]
    for number, name in enumerate(shards):
        write(tmp_path / name, [Spec(f"t{number}", "U8", (8,))])
    write_index(tmp_path, {"t0": shards[0], "t1": shards[1]})
    source = SlowSource(tmp_path)
    monkeypatch.setattr(session, "open_source", lambda *_, **__: source)

    def later() -> None:
        for name, size in source.files():
            source.arrive(name, 0, size)

    thread = threading.Timer(0.1, later)
    thread.start()
    with soon():
        assert len(p2pcache.load("a/b")) == 2
    thread.join()
    assert [r.path for r in source.waits[0]] == ["model.safetensors.index.json", *shards]
