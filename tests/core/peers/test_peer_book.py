"""Slow neighbours, and a node that catches up."""

from p2pcache.core import bitset
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.racks.bridges import Boundaries
from p2pcache.core.settings import SwarmSettings

SETTINGS = SwarmSettings()
RUNS = 40


def test_a_slow_peer_is_found_and_may_try_again() -> None:
    book = PeerBook(SETTINGS, Boundaries(1, RUNS))
    for node in range(4):
        peer = book.on_connected(node, 1, 0.0)
        assert peer is not None
        peer.on_request(0.0)
        peer.on_rated_end(100 if node == 3 else 1000, 1.0)
    book.rate_peers(1.0)
    assert [p.slow for p in book.peers.values()] == [False, False, False, True]
    assert sum(p.slow for p in book.peers.values()) == 1
    book.check()
    book.rate_peers(1.0 + SETTINGS.slow_retry_s * 1.1)
    assert not any(p.slow for p in book.peers.values())


def test_a_peer_that_owes_a_run_and_sends_nothing_becomes_slow() -> None:
    book = PeerBook(SETTINGS, Boundaries(1, RUNS))
    for node in range(4):
        book.on_connected(node, 1, 0.0)
    for peer in book.peers.values():
        peer.on_request(0.0)
    for second in range(1, 10):
        for peer in book.peers.values():
            if peer.node != 3 or second < 3:
                peer.on_rated_end(1000, float(second))
                peer.on_request(float(second))
        book.rate_peers(float(second))
        slow = [p.node for p in book.peers.values() if p.slow]
        assert slow == ([3] if second > 6 else []), second


def book_of(*haves: int, runs: int = 1000) -> PeerBook:
    book = PeerBook(SETTINGS, Boundaries(1, runs))
    for number, have in enumerate(haves):
        book.on_connected(2 + number, have, 0.0)
    return book


def test_a_node_behind_most_neighbours_asks_for_more() -> None:
    one = SETTINGS.outstanding
    old = bitset.full(3 * one)
    book = book_of(*[old] * 6, 0, 0)
    assert book.catch_up_requests(bitset.full(one - 1)) == 0
    assert book.catch_up_requests(bitset.full(one)) == 1
    assert book.catch_up_requests(bitset.full(2 * one)) == 2
    assert book.catch_up_requests(bitset.full(3 * one)) == 2, "two is the most"
    assert book.catch_up_requests(0) == 0
    assert book_of(*[old] * 5, 0, 0, 0).catch_up_requests(old) == 0, (
        "few neighbours have it, so it isn't old"
    )
    assert book_of().catch_up_requests(old) == 0
    new = bitset.full(5 * one) & ~old
    assert book_of(*[old] * 7, old | new).catch_up_requests(new | bitset.full(one)) == 0, (
        "all lack that much"
    )


def test_a_node_far_behind_asks_for_no_more_than_the_others() -> None:
    """Such a node came late or has a slow link, and more for it would be less for the others."""
    runs = 9 * SETTINGS.outstanding
    book = book_of(*[bitset.full(runs)] * 8)
    assert book.catch_up_requests(bitset.full(runs)) == 0
    assert book.catch_up_requests(bitset.full(SETTINGS.outstanding)) == 1
