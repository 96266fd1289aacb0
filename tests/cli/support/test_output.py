"""Tables that line up on a terminal."""

import pytest

from p2pcache.cli.support.output import table


def test_wide_and_combining_characters_have_their_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table(
        ("FILE", "SIZE"), [("模型.bin", "2 B"), ("e\u0301.bin", "10 B"), ("abcdefgh", "1 B")], (1,)
    )
    assert capsys.readouterr().out.splitlines() == [
        "FILE      SIZE", "模型.bin   2 B", "e\u0301.bin     10 B", "abcdefgh   1 B",
    ]  # fmt: skip
