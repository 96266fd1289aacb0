"""What is readable of a model that arrives: runs of the agent's directory, then those of a fallback."""

from typing import Any

import pytest

from p2pcache.core import bitset
from p2pcache.errors import NotFound
from p2pcache.loader.source.arriving_files import ArrivingFiles
from p2pcache.loader.source.base import Range
from tests.io.models.store_kit import Model

MODEL = Model({"a": bytes(range(250)) * 20}, 700)


class FakeBoard:
    """An arriving directory of which some runs are proved."""

    withdrawals = 0

    def __init__(self, ready: set[int]) -> None:
        self.layout = MODEL.layout
        self.ready = ready

    def is_ready(self, run: int) -> bool:
        return run in self.ready

    def close(self) -> None:
        """Nothing is open."""


class FakeFallback:
    """Chunks of the origin."""

    error = None
    closed = False

    def has_run(self, run: int) -> bool:
        return True

    def read_chunk(self, chunk: int, start: int, into: memoryview) -> None:
        into[:] = MODEL.chunk(chunk)[start : start + len(into)]

    def close(self) -> None:
        self.closed = True


def attached(ready: set[int]) -> ArrivingFiles:
    files = ArrivingFiles("team/m:v1")
    board: Any = FakeBoard(ready)
    files.use_board(board)
    return files


def test_a_range_is_available_when_all_its_runs_are_proved() -> None:
    whole = Range("a", 0, 5000)
    files = attached(set())
    runs = files.runs_of(whole)
    assert files.missing([whole]) == bitset.of(runs)
    assert not files.available(whole)
    assert not files.read_files(whole, [memoryview(bytearray(5000))])
    files = attached(set(runs))
    assert files.available(whole)
    assert files.missing([whole]) == 0
    assert files.verified_chunks() == MODEL.layout.chunk_count


def test_a_fallback_fills_what_the_agent_has_not_proved() -> None:
    files = attached(set())
    fallback: Any = FakeFallback()
    files.fallback = fallback
    data = bytearray(3000)
    assert files.read_files(Range("a", 100, 3100), [memoryview(data)[:33], memoryview(data)[33:]])
    assert data == MODEL.files["a"][100:3100]
    files.close()
    assert fallback.closed


def test_a_withdrawal_during_a_read_discards_it() -> None:
    files = attached(set())
    fallback: Any = FakeFallback()
    files.fallback = fallback
    counts = iter(range(10))
    board: Any = files.board
    board.__class__ = type(
        "Withdrawing", (FakeBoard,), {"withdrawals": property(lambda _: next(counts))}
    )
    assert not files.read_files(Range("a", 0, 10), [memoryview(bytearray(10))])


def test_a_file_that_the_model_lacks() -> None:
    with pytest.raises(NotFound, match="no file 'b'"):
        attached(set()).available(Range("b", 0, 1))
