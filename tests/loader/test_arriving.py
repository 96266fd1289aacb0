"""Models that still arrive: completion order, priorities, time limits, no byte before its time."""

import threading
from pathlib import Path

import pytest
import torch

import p2pcache
from p2pcache.errors import OriginUnavailable, TimedOut
from p2pcache.loader import session
from tests.loader.loader_kit import (
    SlowSource,
    Spec,
    reader_threads,
    soon,
    torch_bytes,
    write,
)

MiB = 1 << 20
FILE = "m.safetensors"
BIG = 5 * MiB  # larger than a batch of small ones, so each travels alone


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowSource:
    body = write(tmp_path / FILE, [Spec(f"t{i}", "U8", (BIG,)) for i in range(5)])
    found = SlowSource(tmp_path)
    found.body = body  # type: ignore[attr-defined]

    def instead(*_: object, **__: object) -> SlowSource:
        return found

    monkeypatch.setattr(session, "open_source", instead)
    return found


def offset(source: SlowSource, number: int) -> int:
    size = dict(source.files())[FILE]
    return size - (5 - number) * BIG


def bring(source: SlowSource, *numbers: int) -> None:
    for number in numbers:
        source.arrive(FILE, offset(source, number), offset(source, number) + BIG)


def test_tensors_are_handed_out_as_they_arrive(source: SlowSource) -> None:
    source.arrive(FILE, 0, offset(source, 0))
    stream = p2pcache.iter_tensors("a/b")
    assert [r.end - r.start for r in source.wanted] == [BIG] * 5
    for number in (3, 0, 4, 2, 1):
        bring(source, number)
        name, tensor = next(stream)
        assert name == f"t{number}"
        assert torch_bytes(tensor) == source.body[name]  # type: ignore[attr-defined]
    assert list(stream) == []
    assert "peers 75%, origin 25%; 7 chunks verified" in stream.report.line()
    assert stream.report.waits.source_s > 0
    first = next(w for w in source.waits if len(w) == 5)
    assert [r.start for r in first] == [
        offset(source, i) for i in range(5)
    ]  # the earliest layer first


def test_headers_are_read_before_weights(source: SlowSource) -> None:
    def later() -> None:
        source.arrive(FILE, 0, 8)
        source.arrive(FILE, 8, offset(source, 0))
        bring(source, *range(5))

    thread = threading.Timer(0.1, later)
    thread.start()
    with soon():
        assert len(p2pcache.load("a/b")) == 5
    thread.join()
    assert [tuple(r) for r in source.waits[0]] == [(FILE, 0, 8)]


def test_only_wanted_bytes_are_waited_for(source: SlowSource) -> None:
    source.arrive(FILE, 0, offset(source, 0))
    start = offset(source, 2)
    source.arrive(FILE, start + BIG // 2, start + BIG)
    axis = p2pcache.ParallelAxis("tensor", 1, 2)
    with soon():
        found = p2pcache.load("a/b", filter="t2", parallel=[axis], fetch="needed")
    assert torch_bytes(found["t2"]) == source.body["t2"][BIG // 2 :]  # type: ignore[attr-defined]
    assert [tuple(r) for r in source.wanted] == [(FILE, start + BIG // 2, start + BIG)]


def test_an_error_of_the_source_ends_the_load(source: SlowSource) -> None:
    source.arrive(FILE, 0, offset(source, 0))
    bring(source, 0)
    stream = p2pcache.iter_tensors("a/b")
    assert next(stream)[0] == "t0"
    source.fail(OriginUnavailable("the origin is gone"))
    with soon(), pytest.raises(OriginUnavailable):
        next(stream)
    assert reader_threads() == []


def test_the_time_limit_covers_headers_and_weights(source: SlowSource) -> None:
    with soon(), pytest.raises(TimedOut):  # not even the header
        p2pcache.load("a/b", timeout_s=0.1)
    source.arrive(FILE, 0, offset(source, 0))
    with soon(), pytest.raises(TimedOut, match=r"within 0.1 s"):
        p2pcache.load("a/b", timeout_s=0.1)


def test_closing_does_not_wait_for_the_swarm(source: SlowSource) -> None:
    source.arrive(FILE, 0, offset(source, 0))
    stream = p2pcache.iter_tensors("a/b")
    with soon():
        stream.close()


def test_get_tensor_demands_the_tensors_bytes(source: SlowSource) -> None:
    source.arrive(FILE, 0, offset(source, 0))
    with p2pcache.safe_open("a/b") as model:
        timer = threading.Timer(0.1, bring, (source, 3))
        timer.start()
        with soon():
            tensor = model.get_tensor("t3")
        timer.join()
        assert [tuple(r) for r in source.demanded] == [
            (FILE, offset(source, 3), offset(source, 3) + BIG)
        ]
        assert torch_bytes(tensor) == source.body["t3"]  # type: ignore[attr-defined]


def test_load_into_from_an_arriving_model(source: SlowSource) -> None:
    source.arrive(FILE, 0, offset(source, 0))
    timers = [threading.Timer(0.05 * i, bring, (source, n)) for i, n in enumerate((4, 1, 0, 3, 2))]
    for timer in timers:
        timer.start()
    into = {f"t{i}": torch.empty(BIG, dtype=torch.uint8) for i in range(5)}
    with soon():
        p2pcache.load_into(into, "a/b")
    assert {name: torch_bytes(t) for name, t in into.items()} == source.body  # type: ignore[attr-defined]
