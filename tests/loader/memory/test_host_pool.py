"""Host memory of a load: bounded by its limit, reused when a tensor dies, never earlier."""

import gc
import mmap
import random
import threading
from collections import deque
from pathlib import Path

import pytest

from p2pcache.loader.memory.arena import SMALL_BYTES, Block
from p2pcache.loader.memory.host_pool import SPARE_BYTES, Budget, HostPool

PAGE = mmap.PAGESIZE


MiB = 1 << 20


def never() -> bool:
    return False


def test_dropped_blocks_reuse_the_same_pages() -> None:
    pool = HostPool(8 * MiB, 1 << 30)
    starts = set()
    for _ in range(50):
        block = pool.alloc(MiB, never)
        assert block is not None
        assert block.span is not None
        starts.add(block.span[0])
        pool.hand_over(block)
        del block
    assert starts == {0}


def test_kept_blocks_keep_their_bytes() -> None:
    pool = HostPool(2 * MiB, 1 << 30)
    kept = []
    for value in range(6):
        block = pool.alloc(MiB, never)
        assert block is not None
        block.view[:] = bytes([value]) * MiB
        pool.hand_over(block)
        kept.append(block.owner)
    pool.close()
    for value, owner in enumerate(kept):
        assert bytes(owner) == bytes([value]) * MiB


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(
        int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon")
    )


def test_one_kept_tensor_does_not_keep_the_arena() -> None:
    gc.collect()
    before = anonymous_bytes()
    pool = HostPool(64 * MiB, 1 << 30)
    owners, block = [], None
    for value in range(16):
        block = pool.alloc(4 * MiB, never)
        assert block is not None
        block.view[:] = bytes([value]) * (4 * MiB)
        pool.hand_over(block)
        owners.append(block.owner)
    del block
    pool.close()
    assert anonymous_bytes() - before > 60 * MiB
    kept = owners[7]
    owners.clear()
    assert anonymous_bytes() - before < 16 * MiB
    assert bytes(kept) == b"\7" * (4 * MiB)


def test_a_recycled_block_is_given_out_again() -> None:
    pool = HostPool(MiB, 1 << 30)
    first = pool.alloc(MiB, never)
    assert first is not None
    pool.recycle(first)
    second = pool.alloc(MiB, never)
    assert second is not None
    assert second.span == first.span


@pytest.mark.parametrize("nbytes", [0, 1, SMALL_BYTES - 1, SMALL_BYTES, 3 * MiB])
def test_blocks_of_every_size_are_writable(nbytes: int) -> None:
    block = HostPool(MiB, 1 << 30).alloc(nbytes, never)
    assert block is not None
    assert len(block.view) == nbytes
    block.view[:] = b"x" * nbytes


def test_the_budget_blocks_until_bytes_are_released() -> None:
    budget = Budget(10)
    assert budget.acquire(100, never)  # alone, whatever its size
    stop = threading.Event()
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(budget.acquire(1, stop.is_set)))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    budget.release(100)
    thread.join(30)
    assert found == [True]
    stop.set()
    assert not budget.acquire(10, stop.is_set)
    assert (budget.out_bytes, budget.peak_bytes) == (1, 100)


def test_tensors_beyond_the_limit_use_the_same_pages_again() -> None:
    """Later blocks lie where the first two lay, since first touches of pages cost time."""
    pool = HostPool(MiB, 1 << 30, 8 * MiB)
    spans = []
    held = None
    for _ in range(6):
        block = pool.alloc(8 * MiB, never)
        assert block is not None
        spans.append(block.span)
        pool.hand_over(block)
        held = block.owner  # as a loop's variable does: until the next one is there
        del block
    assert held is not None
    assert None not in spans
    assert len(set(spans)) == 2


@pytest.mark.parametrize("limit_mib", [24, 64, 100])
def test_free_pages_with_memory_count_towards_the_limit(limit_mib: int) -> None:
    """Holes that are too small for the next tensor keep their pages, which must be trimmed."""
    dice, limit, largest = random.Random(5), limit_mib * MiB, 24 * MiB
    pool = HostPool(limit, 1 << 40, largest)
    sizes = deque(dice.randrange(SMALL_BYTES, largest) for _ in range(120))
    ready: deque[Block] = deque()
    before = anonymous_bytes()

    def read_ahead() -> int:
        while sizes and (block := pool.alloc(sizes[0], lambda: True)) is not None:
            block.view[:: mmap.PAGESIZE] = bytes(-(-len(block.view) // mmap.PAGESIZE))
            sizes.popleft()
            ready.append(block)
        return anonymous_bytes() - before

    most, held = read_ahead(), None
    while ready:
        pool.on_next_batch()
        block = ready.popleft()
        pool.hand_over(block)
        most = max(most, read_ahead())
        held = block.owner  # as a loop's variable does: until the next one is there
        del block
        most = max(most, read_ahead())
    assert held is not None
    assert most < limit + SPARE_BYTES + 4 * MiB


def test_blocks_that_the_consumer_keeps_do_not_count() -> None:
    """They count until the consumer asks for more, not until it drops them."""
    pool = HostPool(MiB, 1 << 30)
    kept = []
    for _ in range(3):
        block = pool.alloc(MiB, lambda: True)
        assert block is not None
        pool.hand_over(block)
        kept.append(block.owner)
        pool.on_next_batch()
    assert pool.budget.acquire(MiB, lambda: True)
