"""When a tracker that says nothing is pinged, doubted and lost."""

import pytest

from p2pcache.core.protocol.silence import (
    DOUBT_MEMBERS,
    DOUBT_S,
    LOOKS,
    PING_AT,
    Silence,
    Step,
    doubt_s,
)


def quiet_looks(silence: Silence, count: int) -> list[tuple[int, Step]]:
    """The looks at which something follows."""
    steps = [(n, silence.on_look()) for n in range(1, count + 1)]
    return [(n, step) for n, step in steps if step is not Step.WAIT]


def test_one_answer_may_be_late() -> None:
    assert len(PING_AT) == 2
    assert max(PING_AT) < LOOKS


def test_a_silent_tracker_is_pinged_twice_and_then_lost() -> None:
    silence = Silence(10.0)
    assert silence.look_s == 1.0
    assert quiet_looks(silence, 11) == [
        (4, Step.PING), (8, Step.PING), (11, Step.LOST)
    ]  # fmt: skip
    assert not silence.doubted


def test_one_that_asks_for_it_is_doubted_before() -> None:
    silence = Silence(5.0, 1.0)
    assert silence.look_s == pytest.approx(0.1)
    assert quiet_looks(silence, 51) == [
        (4, Step.PING), (8, Step.PING), (11, Step.DOUBT), (51, Step.LOST)
    ]  # fmt: skip


def test_one_that_is_asked_is_doubted_sooner() -> None:
    silence = Silence(5.0, 1.0)
    quiet_looks(silence, 2)
    assert silence.on_asked(), "a ping goes with the question: the answer may take long"
    assert quiet_looks(silence, 5) == [(2, Step.PING), (5, Step.DOUBT)]


def test_further_questions_neither_hasten_nor_put_off_a_doubt() -> None:
    silence = Silence(5.0, 1.0)
    looked = [(silence.on_asked(), silence.on_look()) for _ in range(5)]
    assert [step for _, step in looked] == [Step.WAIT, Step.PING, Step.WAIT, Step.WAIT, Step.DOUBT]


def test_one_that_was_asked_and_speaks_has_its_whole_time() -> None:
    silence = Silence(5.0, 1.0)
    silence.on_asked()
    quiet_looks(silence, 4)
    silence.on_sign()
    assert quiet_looks(silence, 10) == [(4, Step.PING), (8, Step.PING)]


def test_a_question_says_nothing_of_the_only_tracker() -> None:
    silence = Silence(10.0)
    assert not silence.on_asked()
    assert quiet_looks(silence, 11)[-1] == (11, Step.LOST)


def test_a_sign_of_life_ends_the_silence_and_not_the_doubt() -> None:
    silence = Silence(5.0, 1.0)
    quiet_looks(silence, 30)
    silence.on_sign()
    assert silence.doubted
    assert quiet_looks(silence, 30) == [(4, Step.PING), (8, Step.PING)], "one doubt is enough"
    silence.on_settled()
    assert (11, Step.DOUBT) in quiet_looks(silence, 11)


@pytest.mark.parametrize("doubt_s", [0.0, 5.0, 60.0])
def test_a_doubt_that_comes_no_sooner_than_the_loss_is_none(doubt_s: float) -> None:
    silence = Silence(5.0, doubt_s)
    assert silence.look_s == 0.5
    assert quiet_looks(silence, 11)[-1] == (11, Step.LOST)


def test_a_large_cluster_doubts_later() -> None:
    assert doubt_s(8) == doubt_s(DOUBT_MEMBERS) == DOUBT_S
    assert doubt_s(20 * DOUBT_MEMBERS) == pytest.approx(20 * DOUBT_S)
