"""Figures and labels that no honest member sends are refused where messages are read."""

from math import inf, nan

import msgspec
import pytest

from p2pcache.core.protocol import messages as m
from p2pcache.errors import RemoteProtocolError
from p2pcache.ids import Ref

DIGEST = "ab" * 32


def said(*taken: int, label: str = "", total_bytes: int = 100, runs: int = 4) -> m.ToTracker:
    return m.Enter(m.SwarmState(DIGEST, runs, label=label, total_bytes=total_bytes, taken=taken))


def ended(label: str) -> m.ToTracker:
    return m.Heartbeat(ended=(m.EndedPull(DIGEST, label, 0, 1.0, 1, (0, 0, 0)),))


def read_for(flow_s: float) -> m.ToTracker:
    return m.LeaseReport(DIGEST, 1, done=(1,), flow_s=flow_s)


def said_label(label: str) -> m.ToTracker:
    return said(label=label)


UNFIT_LABELS = [
    "x" * 291, "m:v1\x1b[2J", "m:v1\nm:v2", "m:v1\n", "m\x9b2J", "m\u2028", "m\u202e1v:", "m\u200b:v1",
]  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        said(1, 2, 3, 4), said(-1, 0, 0), said(0, 0, 1 << 63), said(total_bytes=-1),
        said(label="x" * 1000), said(runs=-1), said(runs=10**9),
        *map(read_for, (nan, inf, -inf, -1.0, 1e9)),
        *(say(bad) for say in (said_label, ended) for bad in UNFIT_LABELS),
    ],
)  # fmt: skip
def test_figures_out_of_range_are_refused(bad: m.ToTracker) -> None:
    with pytest.raises(RemoteProtocolError):
        m.decode_to_tracker(m.encode(bad))


@pytest.mark.parametrize("field", ["address", "version", "rack", "site", "name"])
@pytest.mark.parametrize(
    "text", ["10.0.0.1\nCRITICAL:1", "n\x1b[2J", "n\x9b2J", "n\u202e", "x" * 257]
)
def test_texts_that_would_change_a_terminal_or_forge_a_log_line_are_refused(
    field: str, text: str
) -> None:
    said = msgspec.structs.replace(m.Announce("n:1", "1"), **{field: text})
    with pytest.raises(RemoteProtocolError):
        m.decode_to_tracker(m.encode(said))


@pytest.mark.parametrize(
    "bad",
    [
        m.Announce("n:1", "1", labels=("a=b",) * 17), m.Announce("n:1", "1", labels=("a=\x1b",)),
        msgspec.structs.replace(m.Announce("n:1", "1"), role="king"),
        m.Enter(m.SwarmState("no digest", 4)), m.Enter(m.SwarmState("AB" * 32, 4)),
    ],
)  # fmt: skip
def test_labels_roles_and_digests_are_checked_where_they_are_read(bad: m.ToTracker) -> None:
    with pytest.raises(RemoteProtocolError):
        m.decode_to_tracker(m.encode(bad))


def test_an_announcement_is_read_as_it_was_said() -> None:
    said = m.Announce("n:1", "1", "größe", role="seed", labels=("gpu=h100",) * 16)
    assert m.decode_to_tracker(m.encode(said)) == said


def test_the_longest_ref_is_a_label() -> None:
    """Or the tracker would refuse all that a node announces, as long as that model is in its cache."""
    ref = Ref.parse(f"{80 * 'n'}/{80 * 'm'}:{128 * 'v'}")
    for good in (said(label=ref.short), ended(ref.short), ended(""), said()):
        assert m.decode_to_tracker(m.encode(good)) == good


def test_a_label_may_have_letters_of_any_language() -> None:
    """Or an agent that calls its models so could tell of them, and not that their pulls ended."""
    for good in (said(label="größe/模型:v1"), ended("größe/模型:v1")):
        assert m.decode_to_tracker(m.encode(good)) == good
