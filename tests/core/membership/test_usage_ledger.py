"""What members tell for people: added up once, also over restarts, and bounded."""

import pytest

from p2pcache.core.membership import usage_ledger
from p2pcache.core.membership.usage_ledger import UsageLedger
from p2pcache.core.protocol.messages import SwarmState
from p2pcache.ids import Ref


def said(*taken: int, label: str = "", total_bytes: int = 100) -> SwarmState:
    return SwarmState("ab" * 32, 4, label=label, total_bytes=total_bytes, taken=taken)


def test_totals_grow_by_what_each_member_grew() -> None:
    book = UsageLedger("ab" * 32)
    book.on_state(1, said(0, 60, 0, label="team/m:v1"), 0.0)
    book.on_state(2, said(10, 40, 1), 0.0)
    book.on_state(1, said(40, 60, 0), 0.0)
    book.on_state(1, said(40, 60, 0), 0.0)
    assert book.taken == (50, 100, 1)
    assert book.alpha == 1.0
    assert book.taken_by(1) == (40, 60, 0)
    assert book.label == "team/m:v1"


def test_a_name_is_written_as_the_member_says_that_knows_its_capitals() -> None:
    book, ref = UsageLedger("ab" * 32), Ref.parse("org/model:v1")
    assert book.name_as_pushed(ref) == "org/model"
    for label in ("org/model:v1", "Org/Model:v1", "org/model:v1"):
        book.on_state(1, said(0, 1, 0, label=label), 0.0)
    assert (book.label, book.name_as_pushed(ref)) == ("Org/Model:v1", "Org/Model")
    book.on_state(2, said(0, 1, 0, label="other:v2"), 0.0)
    assert (book.label, book.name_as_pushed(ref)) == ("other:v2", "org/model")


def test_the_name_is_the_one_told_last_and_two_members_do_not_change_it_at_each_heartbeat() -> None:
    book = UsageLedger("ab" * 32)
    for node, label in ((1, "m:v1"), (2, "m:prod"), (1, "m:v1"), (2, "m:prod"), (1, "m:v1")):
        book.on_state(node, said(0, 1, 0, label=label), 0.0)
    assert book.label == "m:prod"
    book.on_state(1, said(0, 1, 0, label="m:v2"), 0.0)
    assert book.label == "m:v2"


def test_nothing_told_has_no_alpha() -> None:
    assert UsageLedger("ab" * 32).alpha is None


def test_a_member_that_restarted_counts_from_nought() -> None:
    book = UsageLedger("ab" * 32)
    book.on_state(1, said(50, 50, 0), 0.0)
    book.on_state(1, said(), 0.0)  # without figures nothing changes
    book.on_state(1, said(10, 20, 0), 0.0)
    assert book.taken == (60, 70, 0)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_ledger, "MOST_NODES", 3)
    book = UsageLedger("ab" * 32)
    for node in range(10):
        book.on_state(node, said(1, 0, 0), 0.0)
    assert book.taken == (10, 0, 0)
    assert book.taken_by(0) == (0, 0, 0)
    assert book.taken_by(9) == (1, 0, 0)
