"""Tables that line up, and that fit a terminal."""

import pytest

from p2pcache.cli.rows.cluster_rows import natural_order, without_domain
from p2pcache.cli.rows.tables import table
from p2pcache.cli.support.output import columns, shortened

HEADS = ("REF", "SIZE", "NODE", "RESULT")
LONG = "a-team-with-a-long-name/a-model-with-a-longer-name-than-that-7b-instruct:2026-11-26"
ROWS = [(LONG, "140 GB", "0123456789abcdef", "exit 7: storage s3://models doesn't answer at all")]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pcache.cli.rows.tables._terminal_columns", lambda: 80)


def lines(capsys: pytest.CaptureFixture[str], *, wide: bool = False) -> list[str]:
    table(HEADS, ROWS, (1,), drop=("NODE",), cut=("REF", "RESULT"), wide=wide)
    return capsys.readouterr().out.splitlines()


def test_wide_and_combining_characters_have_their_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table(
        ("FILE", "SIZE"), [("模型.bin", "2 B"), ("e\u0301.bin", "10 B"), ("abcdefgh", "1 B")], (1,)
    )
    assert capsys.readouterr().out.splitlines() == [
        "FILE      SIZE", "模型.bin   2 B", "e\u0301.bin     10 B", "abcdefgh   1 B",
    ]  # fmt: skip


def test_a_pipe_gets_everything(capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys)
    assert found[0].split() == [*HEADS]
    assert all(str(cell) in found[1] for cell in ROWS[0])


def test_a_terminal_gets_what_fits(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys)
    assert found[0].split() == ["REF", "SIZE", "RESULT"]
    assert max(columns(line) for line in found) == 80
    assert "2026-11-26" in found[1]  # a ref keeps its tag
    assert "…" in found[1]
    assert found[1].endswith("at all")


@pytest.mark.parametrize(("heads", "cells", "right", "cut", "kept"), [
    (("NAME", "STATUS", "ADDRESS", "FREE", "SEEN"), ("node1", "up", "127.0.0.1:7411", "62.2 GB", "4.3s ago"),
     (3,), ("NAME", "ADDRESS", "SEEN"), "62.2 GB"),
    (("NAME", "TAG", "SIZE", "COPIES", "PHASE"), ("team/small", "oneempty", "8.39 MB", "1.5", "arriving"),
     (2, 3), ("NAME", "TAG"), "8.39 MB"),
    (("SETTING", "VALUE", "FROM"), ("torrent_download_bytes_per_s", "unix:///tmp/a1.sock", "environment"),
     (), ("VALUE", "FROM"), "torrent"),
])  # fmt: skip
def test_a_narrow_terminal_gets_all_texts_cut_and_numbers_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], heads: tuple[str, ...],
    cells: tuple[str, ...], right: tuple[int, ...], cut: tuple[str, ...], kept: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("p2pcache.cli.rows.tables._terminal_columns", lambda: 40)
    table(heads, [cells], right, cut=cut)
    found = capsys.readouterr().out.splitlines()
    assert max(columns(line) for line in found) == 40
    assert kept in found[1]


def test_short_forms_come_before_cuts(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [("2026-11-26 10:00:00", LONG), ("2026-11-26 10:00:01", "a:b")]
    for wide, when in ((False, "10:00:00"), (True, "2026-11-26 10:00:00")):
        table(
            ("WHEN", "REF"),
            cells,
            short={"WHEN": ["10:00:00", "10:00:01"]},
            cut=("REF",),
            wide=wide,
        )
        assert capsys.readouterr().out.splitlines()[1].startswith(f"{when}  a-team")
    table(("WHEN", "REF"), cells[1:], short={"WHEN": ["10:00:01"]}, cut=("REF",))
    assert "2026" in capsys.readouterr().out, "what fits is left as it is"


def test_names_lose_what_tells_none_apart() -> None:
    assert without_domain(["a-1.eu.example", "a-2.eu.example"]) == ["a-1", "a-2"]
    assert without_domain(["a.eu.example", "a.us.example"]) == ["a.eu", "a.us"]
    assert without_domain(["a", "b.example"]) == ["a", "b.example"]
    assert without_domain(["a.example", "a.example"]) == ["a", "a"]
    assert without_domain([]) == []


def test_numbers_are_sorted_as_numbers() -> None:
    names = ["n-10", "n-2", "", "10", "m-3.x", "n-2b"]
    assert sorted(names, key=natural_order) == ["", "10", "m-3.x", "n-2", "n-2b", "n-10"]


def test_wide_asks_for_all(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert LONG in lines(capsys, wide=True)[1]


def test_what_fits_is_left_alone(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    table(("REF", "NODE"), [("a:b", "n")], drop=("NODE",), cut=("REF",))
    assert capsys.readouterr().out == "REF  NODE\na:b  n\n"


@pytest.mark.parametrize(("text", "width", "end", "short"), [
    ("abcdef", 6, False, "abcdef"), ("abcdefgh", 6, False, "abc…gh"), ("abcdefgh", 6, True, "abcde…"),
    ("模型模型模型", 7, False, "模型…型"),
])  # fmt: skip
def test_a_text_is_shortened(text: str, width: int, end: bool, short: str) -> None:
    assert shortened(text, width, end=end) == short
