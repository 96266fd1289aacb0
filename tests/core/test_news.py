"""When neighbours are told what a node has, and when those that it supplies."""

import math

from p2pcache.core.commands import Announce, Command
from p2pcache.core.news import News
from p2pcache.core.settings import SwarmSettings

SETTINGS = SwarmSettings(have_interval_s=0.02, supply_interval_s=0.005)
HOP_S = 0.2


def told(news: News, now: float) -> list[tuple[int, bool]]:
    out: list[Command] = []
    news.tell(now, out)
    return [(one.runs, one.supplied) for one in out if isinstance(one, Announce)]


def test_among_neighbours_all_hear_soon_and_in_batches() -> None:
    news = News(SETTINGS)
    news.add(0b1, None)
    assert told(news, 1.0) == [(0b1, False)]
    news.add(0b10, None)
    news.add(0b100, None)
    assert told(news, 1.019) == []
    assert news.next_at() == 1.02
    assert told(news, 1.02) == [(0b110, False)]
    assert news.next_at() == math.inf


def test_where_suppliers_bring_what_is_new_others_hear_in_larger_batches() -> None:
    news = News(SETTINGS)
    news.add(0b1, HOP_S)
    assert told(news, 1.0) == [(0b1, False), (0b1, True)]
    news.add(0b10, HOP_S)
    assert told(news, 1.006) == [(0b10, True)]
    assert news.next_at() == 1.0 + HOP_S / 2
    news.add(0b100, HOP_S)
    assert told(news, 1.1) == [(0b110, False), (0b100, True)]


def test_until_a_hop_is_known_and_where_it_is_quick_nothing_waits() -> None:
    for hop_s in (math.inf, 0.001):
        news = News(SETTINGS)
        news.add(0b1, hop_s)
        told(news, 1.0)
        news.add(0b10, hop_s)
        assert (0b10, False) in told(news, 1.02)


def test_who_is_not_supplied_any_more_waits_no_longer() -> None:
    news = News(SETTINGS)
    news.add(0b1, HOP_S)
    told(news, 1.0)
    news.add(0b10, None)
    assert told(news, 1.02) == [(0b10, False)]


def test_what_was_lost_is_not_told() -> None:
    news = News(SETTINGS)
    news.add(0b11, HOP_S)
    news.lose(0b1)
    assert told(news, 1.0) == [(0b10, False), (0b10, True)]
    news.add(0b100, HOP_S)
    news.lose(0b100)
    assert news.next_at() == math.inf
