"""The governor on made-up hosts: it gives way, recovers, settles, and never starves anybody."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.host.governor import Governor, Mode, Sample
from p2pcache.core.host.settings import CPU_STALL, FLOOR_BYTES_PER_S, LINK_USE, STEP

FLOOR, SLOTS = 0.1, 8
FAST = 1e9  # bytes per second


def governor(mode: Mode = "on") -> Governor:
    return Governor(mode, floor=FLOOR, slots=SLOTS)


def test_the_share_shrinks_on_a_strained_host_and_grows_on_a_calm_one() -> None:
    one = governor()
    one.handle(Sample(cpu=0.0, sent=FAST), 0)
    limits = one.handle(Sample(cpu=2 * CPU_STALL, sent=FAST), 1)
    assert limits.share == 0.5 * 0.9 or limits.share == 0.5
    assert (limits.cause, limits.strain) == ("cpu", 2)
    assert limits.rate == pytest.approx(limits.share * FAST, rel=0.01)
    assert limits.slots == SLOTS // 2
    for second in range(2, 20):
        limits = one.handle(Sample(cpu=0.0, sent=FAST / 2), second)
    assert limits.share == 1
    assert (limits.rate, limits.slots, limits.cause) == (0, SLOTS, "")


def test_the_largest_strain_counts() -> None:
    limits = governor().handle(Sample(cpu=0.1, io=0.1, link=LINK_USE, engine=0.2), 0)
    assert limits.cause == "link"
    assert limits.share == pytest.approx(0.9)


def test_auto_waits_for_an_engine_to_report() -> None:
    one = governor("auto")
    assert one.handle(Sample(cpu=1, io=1, link=1), 0).share == 1
    assert one.handle(Sample(cpu=1, engine=0.1), 1).share < 1, "now it speaks: the host counts"
    for second in range(2, 30):
        one.handle(Sample(cpu=1), second)
    assert one.limits.share == 1, "it is gone"


def test_full_speed_is_at_most_the_rate_of_the_link() -> None:
    limits = governor().handle(Sample(cpu=1, sent=10 * FAST, link_rate=FAST), 0)
    assert limits.rate == limits.share * FAST


def test_off_never_limits() -> None:
    assert governor("off").handle(Sample(cpu=1, memory=1, engine=9), 0).share == 1


def test_a_host_without_measurements_has_no_strain() -> None:
    one = governor()
    assert one.handle(Sample(), 0).strain == 0
    assert not one.governs


def test_a_clock_that_slept_or_went_back_does_no_harm() -> None:
    one = governor()
    one.handle(Sample(cpu=1), 100)
    share = one.limits.share
    assert one.handle(Sample(), 50).share == share
    assert one.handle(Sample(), 1e9).share <= share + 5 * STEP + 1e-9


values = st.none() | st.floats(0, 1)
samples = st.builds(
    Sample, cpu=values, io=values, memory=values, link=st.none() | st.floats(0, 5),
    engine=st.none() | st.floats(0, 1e6), sent=st.floats(0, 1e11), taken=st.floats(0, 1e11),
)  # fmt: skip


@given(
    st.lists(st.tuples(samples, st.floats(0, 100)), max_size=60), st.sampled_from(["auto", "on"])
)
def test_the_share_stays_above_the_floor_and_returns_to_full_speed(
    past: list[tuple[Sample, float]], mode: Mode
) -> None:
    one, now = governor(mode), 0.0
    for sample, passed in past:
        now += passed
        one.handle(sample, now)
        one.check()
        if one.governs:
            assert one.limits.rate >= FLOOR_BYTES_PER_S
    for _ in range(30):
        now += 1
        one.handle(Sample(cpu=0, engine=0), now)
        one.check()
    assert not one.governs


@given(st.floats(0.05, 20), st.floats(0, 0.6), st.integers(0, 2))
def test_the_share_settles_where_strain_follows_it(gain: float, others: float, lag: int) -> None:
    """A host whose strain is that of others and `gain` times our share, seen `lag` looks late."""
    one, shares = governor(), [1.0] * 3
    for second in range(120):
        strain = others + gain * shares[-1 - lag]
        shares.append(
            one.handle(Sample(cpu=strain * CPU_STALL, sent=FAST * shares[-1]), second).share
        )
    settled = shares[-40:]
    swing = max(settled) - min(settled)
    assert swing <= (0.001 if lag < 2 else 0.05), settled
    if FLOOR < settled[-1] < 1:
        assert others + gain * settled[-1] <= 1.0 + 1e-9, "serving sees no more than it should"
