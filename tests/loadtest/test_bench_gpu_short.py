"""The short form of the GPU benchmark: its sums, its limits, and that its experiments move the right bytes."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import p2pcache
from loadtest.bench_gpu import mapped, short, ways, workers
from loadtest.bench_gpu.ends import Host, digest, shards
from loadtest.bench_gpu.short import Section, Short
from loadtest.bench_loader import __main__ as bench_loader


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {"HIDDEN": 64, "INNER": 96, "KEYS": 16, "WORDS": 480}.items():
        monkeypatch.setattr(bench_loader, name, value)
    folder = tmp_path / "llama"
    folder.mkdir()
    bench_loader.make_llama(folder, 2, layers=2)
    return folder


def record(section: str, name: str, turn: int, seconds: float, nbytes: int = 100) -> dict[str, Any]:
    return {"section": section, "name": name, "turn": turn, "seconds": seconds, "bytes": nbytes}


def test_ratios_are_of_rates_within_a_turn_and_the_first_turn_stands_apart() -> None:
    records = [
        record("moe", "ceiling", 0, 9.0), record("moe", "ceiling", 1, 1.0), record("moe", "ceiling", 2, 4.0),
        record("moe", "mine", 0, 7.0), record("moe", "mine", 1, 2.0), record("moe", "mine", 2, 8.0),
        {"section": "moe", "name": "other", "turn": 0, "failed": "no such thing"},
    ]  # fmt: skip
    ceiling, mine, other = short.rows(records)
    assert (mine["of_baseline"], mine["first_s"], mine["seconds"]) == (0.5, 7.0, [2.0, 8.0])
    assert ceiling["of_baseline"] == 1
    assert other["failed"] == "no such thing"
    short.show([ceiling, mine, other], "head")


def test_a_call_that_took_no_time_has_a_row_like_others() -> None:
    records = [record("calls", "a copy", 1, 0.0), record("calls", "a call", 1, 2.0)]
    assert [row["name"] for row in short.rows(records)] == ["a copy", "a call"]


def test_each_share_of_workers_has_its_own_baseline() -> None:
    records = [
        record("engines", f"{name}, {share}", 1, seconds)
        for name, share, seconds in [("mapping, copied", "whole", 4.0), ("load_into", "whole", 2.0),
                                     ("mapping, copied", "an eighth", 1.0), ("load_into", "an eighth", 2.0)]
    ]  # fmt: skip
    found = {row["name"]: row["of_baseline"] for row in short.rows(records)}
    assert found["load_into, whole"] == 2
    assert found["load_into, an eighth"] == 0.5


def test_time_that_a_section_leaves_goes_to_the_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def records(form: Short) -> Iterator[dict[str, Any]]:
        given.append(form.until - time.monotonic())
        yield {"name": "a", "turn": 1, "seconds": 1.0, "bytes": 1}

    monkeypatch.setattr(short, "SECTIONS", [Section(str(i), 1, "", records) for i in range(3)])
    file = tmp_path / "found.json"
    found = short.run(Short(tmp_path, tmp_path, "cpu", 1, []), 1, "head", file)
    assert given == pytest.approx([20, 30, 60], abs=1)
    assert json.loads(file.read_text()) == {"head": "head", "records": found}


def test_a_section_that_needs_too_long_is_cut_short_and_says_so(llama: Path) -> None:
    form = Short(llama, llama, "cpu", 1, [])
    form.until = time.monotonic() + 0.05  # python needs longer to start
    (last,) = form.experiment("registration", llama)
    assert "cut short" in last["failed"]


@pytest.mark.slow
def test_an_experiment_in_a_process_tells_all_its_records(llama: Path) -> None:
    form = Short(llama, llama, "cpu", 1, [])
    form.until = time.monotonic() + 60
    found = list(form.experiment("registration", llama))
    assert len(found) == 4 * 3
    assert not any("failed" in told for told in found)


def test_a_way_that_fails_costs_its_own_records_only() -> None:
    def broken() -> None:
        raise RuntimeError("no such device")

    found = list(ways.in_turns({"turns": 2}, Host(), 1, {"a": broken, "b": lambda: None}))
    assert [(told["name"], told["turn"]) for told in found] == [
        ("a", 0),
        ("b", 0),
        ("b", 1),
        ("b", 2),
    ]


@pytest.mark.parametrize("way", ["by hand", "by mapping"])
def test_pipelines_by_hand_bring_all_bytes(llama: Path, way: str) -> None:
    body = b"".join(path.read_bytes() for path in shards(llama))
    whole = torch.zeros(len(body), dtype=torch.uint8)
    if way == "by hand":
        ways._by_hand(llama, torch.zeros(8 << 20, dtype=torch.uint8), whole, Host(), 2, 1)
    else:
        mapped.by_mapping(llama, whole, Host(), 2, 1)
    assert whole.numpy().tobytes() == body


def test_all_ways_of_a_worker_fill_the_same_parameters(llama: Path) -> None:
    device, digests = Host(), set()
    targets = ways.spaces(llama, device, 1, 4)
    for way in ways.engine_ways(llama, device, 1, 4, targets).values():
        for target in targets.values():
            target.zero_()
        way()
        digests.add(digest(targets))
    expected = {name: ways.cut(name, t, 1, 4).contiguous() for name, t in ways.mapped(llama)}
    assert digests == {digest(expected)}


def test_workers_with_an_arena_fill_the_same_parameters(llama: Path, tmp_path: Path) -> None:
    size = 2
    (tmp_path / "arena").write_bytes(bytes(1 << 18))
    (tmp_path / "counts").write_bytes(bytes(size * 4096))
    found: dict[int, dict[str, torch.Tensor]] = {}

    def work(rank: int) -> None:
        job = {"folder": str(llama), "rank": rank, "size": size, "shared": str(tmp_path)}
        found[rank] = ways.spaces(llama, Host(), rank, size)
        workers.Arena(job, Host(), found[rank]).run()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for rank in range(size):
        for name, tensor in ways.mapped(llama):
            assert torch.equal(
                found[rank][name].view(torch.int16),
                ways.cut(name, tensor, rank, size).contiguous().view(torch.int16),
            )


def test_the_layout_of_experts_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short, "WEIGHT", (4, 8))
    monkeypatch.setattr(short, "SCALE", (1, 2))
    short.make_moe(tmp_path, 6)
    found = p2pcache.load(tmp_path)
    assert len(found) == 12
    assert len(shards(tmp_path)) == short.MOE_FILES
