"""How many reads of the origin are under way at once."""

from p2pcache.core.chunking import MiB
from p2pcache.core.depth import Depth
from p2pcache.core.settings import SwarmSettings

SETTINGS = SwarmSettings()


def after_one_read(run_bytes: int, waited_s: float, *, alone: bool) -> Depth:
    depth = Depth([run_bytes] * 1000, SETTINGS, 0.0)
    depth.answered(waited_s, alone=alone)
    depth.read(0, waited_s + 0.1)
    return depth


def test_who_is_alone_far_from_storage_reads_ahead_at_once() -> None:
    assert after_one_read(MiB // 4, 0.2, alone=True).reads == 32
    assert after_one_read(MiB, 0.2, alone=True).reads == 32
    assert after_one_read(4 * MiB, 0.2, alone=True).reads == SETTINGS.origin_fetches
    assert after_one_read(MiB // 4, 0.04, alone=True).reads == SETTINGS.origin_fetches
    assert after_one_read(MiB // 4, 0.2, alone=False).reads == SETTINGS.origin_fetches


def test_a_neighbour_ends_it() -> None:
    depth = after_one_read(MiB // 4, 0.2, alone=True)
    depth.answered(0.2, alone=False)
    depth.read(1, 0.4)
    assert depth.ahead == 0
