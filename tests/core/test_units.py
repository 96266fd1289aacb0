import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.units import (
    format_bytes,
    format_duration,
    parse_duration,
    parse_rate,
    parse_size,
)
from p2pcache.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("512", 512), ("1B", 1), ("1k", 1000), ("1kB", 1000), ("64KiB", 65536),
        ("10GiB", 10 << 30), ("10Gi", 10 << 30), ("10gib", 10 << 30), ("1.5GB", 1_500_000_000),
        ("1.5 GB", 1_500_000_000), (" 2TiB ", 2 << 40), ("0.5KiB", 512),
    ],
)  # fmt: skip
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "ten", "-1", "1e9", "10 apples", "1i", "1iB", "1GiBs", "1,5GB", "٣", "9" * 30],
)
def test_not_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200mbit", 25_000_000), ("25gbit", 3_125_000_000), ("8bit", 1), ("100MiB/s", 100 << 20),
        ("1.5GB/s", 1_500_000_000), ("1000", 1000), ("0", 0), ("50Mbit/s", 6_250_000),
    ],
)  # fmt: skip
def test_rates(text: str, value: int) -> None:
    assert parse_rate(text) == value


@pytest.mark.parametrize("text", ["10mbps", "fast", "/s", "mbit", "-5mbit"])
def test_not_rates(text: str) -> None:
    with pytest.raises(UsageError, match="not a rate"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("30", 30), ("250ms", 0.25), ("5m", 300), ("2h", 7200), ("7d", 604800), ("1.5s", 1.5)],
)
def test_durations(text: str, value: float) -> None:
    assert parse_duration(text) == pytest.approx(value)


def test_not_a_duration() -> None:
    with pytest.raises(UsageError, match="for example 30"):
        parse_duration("soon")


@given(st.integers(0, 1 << 61))
def test_a_plain_number_is_itself(count: int) -> None:
    assert parse_size(str(count)) == count
    assert parse_rate(f"{count}/s") == count


@given(st.integers(0, 4000), st.sampled_from(["", "k", "M", "G", "T"]), st.booleans())
def test_prefixes_are_powers(count: int, prefix: str, binary: bool) -> None:
    if binary and not prefix:
        binary = False
    step = 1024 if binary else 1000
    power = ["", "k", "M", "G", "T"].index(prefix)
    assert parse_size(f"{count}{prefix}{'i' if binary else ''}B") == count * step**power


@given(st.text(max_size=20))
def test_any_text_parses_or_is_a_usage_error(text: str) -> None:
    for parse in (parse_size, parse_rate, parse_duration):
        with contextlib.suppress(UsageError):
            assert parse(text) >= 0


@given(st.integers(0, 10**16))
def test_formatted_sizes_are_short_and_near(count: int) -> None:
    text = format_bytes(count)
    assert len(text) <= 9
    assert parse_size(text) == pytest.approx(count, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (0.44, "0.4s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (185, "3m05s"),
        (7800, "2h10m"),
        (356_000, "4d2h"),
    ],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
