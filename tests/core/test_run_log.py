"""The log of runs: bounded, oldest first, in words."""

from p2pcache.core.run_log import RunLog


def test_a_story_tells_of_one_run_oldest_first() -> None:
    log = RunLog(10)
    log.note(1.0, 7, "granted", 0xAB)
    log.note(1.5, 8, "granted", 0xCD)
    log.note(2.25, 7, "free")
    assert log.story(7) == ["1.000 granted 00000000000000ab", "2.250 free"]
    assert log.story(9) == []


def test_old_entries_go() -> None:
    log = RunLog(2)
    for when in range(3):
        log.note(when, 1, "asked of", when)
    assert [line.split()[0] for line in log.story(1)] == ["1.000", "2.000"]
