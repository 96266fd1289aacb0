"""Bytes of another site become chunks of the store only when BLAKE3 says so."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from p2pcache.core import bitset
from p2pcache.errors import IntegrityError
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.torrents.arrivals import Arrivals, joined
from tests.io.models.store_kit import Model, model, open_store


@contextmanager
def waiting(tmp: Path) -> Iterator[tuple[Model, ModelStore, Arrivals]]:
    """A store that lacks a model whose files wait, none of them told of."""
    made = model(chunk_bytes=5000)
    for path, data in made.files.items():
        (tmp / "files" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp / "files" / path).write_bytes(data)
    with closing(open_store(tmp)) as store:
        lacks = made.add(store)
        yield made, lacks, Arrivals(lacks, tmp / "files")


def test_a_chunk_is_proved_when_all_of_it_has_come(tmp_path: Path) -> None:
    with waiting(tmp_path) as (made, store, arrivals):
        size = len(made.files["weights-2.bin"])
        assert arrivals.prove_parts([("weights-2.bin", 3000, 9000)]) == 0
        assert arrivals.prove_parts([("weights-2.bin", 0, 3000)]) == 5000
        assert (
            arrivals.prove_parts([("weights-2.bin", 9000, size)]) == 10_000
        )  # the repeated chunk counts once
        made.assert_proved(store)
        everything = bitset.full(store.layout.run_count)
        assert "weights-2.bin" not in arrivals.lacking(everything)
        for path, spans in arrivals.lacking(everything).items():
            arrivals.prove_parts([(path, *span) for span in spans])
        assert store.complete
        made.assert_proved(store)
        assert arrivals.lacking(everything) == {}


def test_what_is_proved_leaves_the_waiting_file(tmp_path: Path) -> None:
    with waiting(tmp_path) as (made, _, arrivals):
        arrivals.prove_parts([("weights-1.bin", 0, 6200)])
        assert (tmp_path / "files/weights-1.bin").read_bytes()[:4096] in (
            bytes(4096), made.files["weights-1.bin"][:4096],  # where the file system has no holes
        )  # fmt: skip


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    with waiting(tmp_path) as (made, store, arrivals):
        (tmp_path / "files/weights-1.bin").write_bytes(bytes(6200))
        (tmp_path / "files/config.json").write_bytes(b"")
        for path in ("weights-1.bin", "config.json"):
            with pytest.raises(IntegrityError):
                arrivals.prove_parts([(path, 0, len(made.files[path]))])
        assert arrivals.prove_parts([("../../etc/passwd", 0, 100), ("none", 0, 1)]) == 0
        assert not store.have_runs() & bitset.full(store.layout.run_count)
        made.fill(store)  # nothing stays half-written
        assert store.complete


def test_spans() -> None:
    assert joined([(0, 5), (5, 7), (6, 9), (12, 13)]) == [(0, 9), (12, 13)]
    assert joined([]) == []
