"""Slow neighbours."""

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
