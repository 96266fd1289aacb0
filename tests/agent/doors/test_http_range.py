"""One range of a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.agent.doors.http_range import asked_range, is_range, wanted_bytes


@pytest.mark.parametrize(
    ("header", "size", "expected"),
    [
        ("", 10, (0, 10)), ("bytes=0-9", 10, (0, 10)), ("bytes=2-4", 10, (2, 5)), ("bytes=2-", 10, (2, 10)),
        ("bytes=-3", 10, (7, 10)), ("bytes=-30", 10, (0, 10)), ("bytes=5-99", 10, (5, 10)),
        ("bytes=10-", 10, None), ("bytes=-0", 10, None), ("bytes=4-2", 10, (0, 10)), ("bytes=-", 10, (0, 10)),
        ("bytes=1-2,4-5", 10, (0, 10)), ("pages=1-2", 10, (0, 10)), ("bytes=1-x", 10, (0, 10)),
        (f"bytes={'9' * 30}-", 10, (0, 10)), ("bytes=\u0661-\u0662", 10, (0, 10)),
    ],
)  # fmt: skip
def test_ranges(header: str, size: int, expected: tuple[int, int] | None) -> None:
    assert wanted_bytes(header, size) == expected
    whole = expected == (0, size)
    assert is_range(header) == (not whole or header in ("bytes=0-9", "bytes=-30"))


def test_a_part_of_another_file_isnt_gone_on_with() -> None:
    answer = {"ETag": '"a"', "Last-Modified": "Wed, 01 Jan 2020 00:00:00 GMT"}
    for condition, same in (
        ("", True), ('"a"', True), (answer["Last-Modified"], True), ('"b"', False), ('W/"a"', False), ("a", False),
        ("Thu, 02 Jan 2020 00:00:00 GMT", False), ("None", False),
    ):  # fmt: skip
        request = {"Range": "bytes=5-"} | ({"If-Range": condition} if condition else {})
        assert asked_range(request, answer) == ("bytes=5-" if same else "")
    assert asked_range({"Range": "bytes=5-", "If-Range": '"a"'}, {}) == ""


@given(st.text(max_size=30) | st.from_regex(r"bytes=\d{0,12}-\d{0,12}"), st.integers(1, 1 << 40))
def test_no_range_leaves_the_file(header: str, size: int) -> None:
    found = wanted_bytes(header, size)
    assert found is None or 0 <= found[0] < found[1] <= size
