"""What a load demands while it waits. In these tests a run is one byte."""

from collections.abc import Sequence

from p2pcache.loader.source.base import Range
from p2pcache.loader.source.demand import AHEAD_RUNS, PATIENCE_S, DemandPolicy


def demands(have: set[int], *, neighbours: int | None) -> DemandPolicy:
    found = DemandPolicy(lambda r: range(r.start, r.end), have.__contains__)
    found.reads_weights = True
    found.neighbours = neighbours
    return found


def tensors(first: int, *, count: int = 100, runs: int = 4) -> list[Range]:
    return [Range("m", first + i * runs, first + (i + 1) * runs) for i in range(count)]


def test_metadata_is_demanded_whole_and_at_once() -> None:
    asked = demands(set(), neighbours=3)
    asked.reads_weights = False
    assert asked.patience_s(tensors(0)) == 0.0
    assert asked.to_demand(tensors(0)) == tensors(0)


def test_with_neighbours_only_the_next_range_is_demanded() -> None:
    for neighbours in (None, 1, 20):  # None: unknown
        asked = demands(set(), neighbours=neighbours)
        assert asked.patience_s(tensors(40)) == PATIENCE_S
        assert asked.to_demand(tensors(40)) == tensors(40, count=1)


def test_without_neighbours_a_load_in_file_order_demands_the_next_range_only() -> None:
    asked = demands(set(range(42)), neighbours=0)
    assert asked.patience_s(tensors(40)) == PATIENCE_S
    assert asked.to_demand(tensors(40)) == tensors(40, count=1)


def tell(asked: DemandPolicy, ranges: Sequence[Range]) -> None:
    asked.mark_demanded(sum(1 << run for r in ranges for run in range(r.start, r.end)))


def test_without_neighbours_a_load_that_skips_tensors_demands_ahead() -> None:
    have = set(range(10))
    asked = demands(have, neighbours=0)
    ranges = tensors(40)
    assert asked.patience_s(ranges) == 0.0
    first = asked.to_demand(ranges)
    assert first == ranges[: AHEAD_RUNS // 4]
    tell(asked, first)
    have |= set(range(40, 44))
    assert asked.to_demand(ranges[1:]) == []  # they are on their way
    have |= set(range(44, 40 + AHEAD_RUNS))
    assert (
        asked.to_demand(ranges[AHEAD_RUNS // 4 :]) == ranges[AHEAD_RUNS // 4 :][: AHEAD_RUNS // 4]
    )


def test_a_tensor_of_many_runs_is_demanded_as_a_whole() -> None:
    asked = demands(set(), neighbours=0)
    large = tensors(40, runs=3 * AHEAD_RUNS)
    assert asked.to_demand(large) == large[:1]


def test_with_its_first_neighbour_a_load_is_patient_again() -> None:
    asked = demands(set(), neighbours=0)
    assert asked.patience_s(tensors(40)) == 0.0
    asked.neighbours = 1
    assert asked.patience_s(tensors(40)) == PATIENCE_S


def test_a_run_is_demanded_once_of_each_agent() -> None:
    asked = demands(set(), neighbours=0)
    assert asked.mark_demanded(0b110) == 0b110
    assert asked.mark_demanded(0b1110) == 0b1000
    asked.on_reattached()
    assert asked.mark_demanded(0b1110) == 0b1110
