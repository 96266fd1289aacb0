"""When neighbours are told what a node has."""

import math

from p2pcache.core.scheduler.have_batch import News
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.commands import Announce, Command

SETTINGS = SwarmSettings(have_interval_s=0.02)


def told(news: News, now: float) -> list[int]:
    out: list[Command] = []
    news.tell(now, out)
    return [one.runs for one in out if isinstance(one, Announce)]


def test_all_hear_soon_and_in_batches() -> None:
    news = News(SETTINGS)
    news.add(0b1)
    assert told(news, 1.0) == [0b1]
    news.add(0b10)
    news.add(0b100)
    assert told(news, 1.019) == []
    assert news.next_at() == 1.02
    assert told(news, 1.02) == [0b110]
    assert news.next_at() == math.inf


def test_what_was_lost_is_not_told() -> None:
    news = News(SETTINGS)
    news.add(0b11)
    news.lose(0b1)
    assert told(news, 1.0) == [0b10]
    news.add(0b100)
    news.lose(0b100)
    assert news.next_at() == math.inf
