"""A short form of `make tracker-load`: the limits that don't depend on a quiet machine."""

import pytest

from loadtest.trackerload.__main__ import CPU, RSS, measure


@pytest.mark.slow
def test_five_hundred_agents_get_their_answers() -> None:
    figures = measure(500, 10, runs=24, settle_s=0)  # the first storm counts
    assert figures.lost == 0
    assert figures.storms > 0
    assert figures.dialled > 0, "the tracker reaches those that it dials"
    assert {"all", "enter", "manifest", "resolve"} <= figures.answers.keys()
    assert figures.cpu < CPU
    assert figures.rss_bytes < RSS
