"""A book of leases, for grants by hand."""

import dataclasses

from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.settings import LeaseSettings

A, B, C, D = 1, 2, 3, 4
SETTINGS = LeaseSettings()


def make(runs: int = 64, **knobs: float) -> tuple[LeaseBook, dict[int, int]]:
    have: dict[int, int] = {}
    knobs = {"first_in_flight": SETTINGS.in_flight, **knobs}
    settings = dataclasses.replace(SETTINGS, **knobs)  # type: ignore[arg-type]
    return LeaseBook(run_count=runs, settings=settings, seed=7, have=have), have


def finish(book: LeaseBook, have: dict[int, int], node: int, run: int, now: float) -> None:
    have[node] = have.get(node, 0) | 1 << run
    book.claim(node, 1 << run, now)
    book.check()
