"""The line that a load logs."""

from p2pcache.loader.report import LoadReport, left_over
from p2pcache.loader.source.base import SourceStats


def test_the_line_has_rate_shares_memory_and_notes() -> None:
    report = LoadReport(
        "team/m:v1", tensors=2, bytes=4_000_000_000, seconds=2.0, memory_limit_bytes=64 << 20,
        source=SourceStats(bytes_peers=300, bytes_disk=100, verified_chunks=7, digest="d", notes=["odd"]),
    )  # fmt: skip
    line = report.line()
    assert line.startswith("loaded team/m:v1: 2 tensors, ")
    assert "(2.00 GB/s); from peers 75%, disk 25%; 7 chunks verified; memory " in line
    assert line.endswith("; odd")
    report.failed = True
    assert report.line().startswith("failed to load ")


def test_names_without_a_partner() -> None:
    assert left_over([], []) == ""
    assert left_over(["x"], []) == "the model lacks 1 tensor (x)"
    assert left_over([], list("abcd")) == "the target lacks 4 tensors (a, b, c, ...)"


def test_the_rate_of_a_thin_link_is_a_number() -> None:
    report = LoadReport("team/m:v1", tensors=75, bytes=24_700_000, seconds=19.7)
    assert "(1.25 MB/s)" in report.line()
