"""The arena: no byte twice, the lowest first, all of it back in the end."""

import mmap

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.loader.memory.arena import Arena

PAGE = mmap.PAGESIZE
MiB = 1 << 20


@given(st.lists(st.one_of(st.integers(1, 9 * PAGE), st.integers(-8, -1)), max_size=60))
def test_spans_never_overlap_and_all_come_back(steps: list[int]) -> None:
    arena = Arena(32 * PAGE)
    out: list[tuple[int, int]] = []
    for step in steps:
        if step > 0:
            span = arena.take(step)
            if span is not None:
                assert span[1] >= step
                assert all(span[0] + span[1] <= o[0] or o[0] + o[1] <= span[0] for o in out)
                out.append(span)
        elif out:
            arena.give_back(out.pop(step % len(out)))
    for span in out:
        arena.give_back(span)
    assert arena.take(32 * PAGE) == (0, 32 * PAGE)
    assert arena.take(1) is None


def test_trim_frees_the_highest_pages_first() -> None:
    arena = Arena(16 * PAGE)
    first, second, third = (arena.take(4 * PAGE) for _ in range(3))
    for span in (first, second, third):
        assert span is not None
        arena.memory[span[0] : sum(span)] = b"x" * span[1]
        arena.give_back(span)
    arena.trim(5 * PAGE)
    assert bytes(arena.memory[: 5 * PAGE]) == b"x" * 5 * PAGE
    assert bytes(arena.memory[5 * PAGE :]) == bytes(11 * PAGE)
    arena.trim(0)
    assert bytes(arena.memory[:]) == bytes(16 * PAGE)
