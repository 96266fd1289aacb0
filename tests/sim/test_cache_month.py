"""A month of a node's cache: our decider fetches no more again than GreedyDual-Size, and less than LRU."""

import pytest

from p2pcache.sim.__main__ import main
from p2pcache.sim.cache_month import Month, capacity, compare, play_pool, requests


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_fewer_bytes_are_fetched_again(seed: int, share: float) -> None:
    found = compare(Month(seed=seed, share=share, requests=3000))
    ours = found.pop("ours")
    assert ours.again_bytes > 0
    for name, figures in found.items():
        assert ours.again_bytes <= 1.05 * figures.again_bytes, name
    assert ours.again_bytes < found["LRU"].again_bytes


def test_storage_is_read_less_where_the_last_copy_goes_last() -> None:
    month = Month(models=60, requests=1000, share=0.6)
    last, as_any = (play_pool(month, 4, last_goes_last=rule) for rule in (True, False))
    assert last.storage_bytes < as_any.storage_bytes


def test_the_month_is_what_it_says() -> None:
    month = Month(models=50, requests=2000)
    all_of_them = list(requests(month))
    assert all_of_them == list(requests(month))
    assert len({request.key.split(":")[0] for request in all_of_them}) > 40
    versions = {int(request.key.split(":")[1]) for request in all_of_them}
    assert max(versions) >= 4
    sizes = {r.key.split(":")[0]: r.size_bytes for r in all_of_them}
    assert 0.15 < capacity(month) / sum(sizes.values()) < 0.3


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["month", "--models", "20", "--requests", "200"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 8
    assert "GreedyDual-Size(bytes)" in out
