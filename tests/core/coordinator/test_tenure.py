"""Who is active: one contender, and several of them over a store whose writes are late, lost or refused."""

import heapq
import itertools
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pcache.core.coordinator.settings import TENURE_S
from p2pcache.core.coordinator.tenure import Contender, Ending, Look, Write
from p2pcache.core.format.tenure_record import TenureRecord, decode_record, encode_record
from p2pcache.errors import IntegrityError
from p2pcache.io.tenures.store import CALL_S

A, B = "http://a:7400", "http://b:7400"


def contender(url: str = A, *, now: float = 0.0, first: int = 1) -> Contender:
    return Contender(f"holder of {url}", url, first=first, now=now)


def taken(one: Contender, now: float = 0.0) -> Write:
    """Let a contender take an empty store."""
    assert one.next_call(now) == Look()
    one.on_seen(None, now)
    write = one.next_call(now)
    assert isinstance(write, Write)
    one.on_seen((write.record, f"v{write.record.renewal}"), now)
    return write


def renewed(one: Contender, now: float) -> Write:
    write = one.next_call(now)
    assert isinstance(write, Write)
    return write


# -- one contender ---------------------------------------------------------------------------------


def test_an_empty_store_is_taken_at_once() -> None:
    one = contender()
    assert not one.may_act(0.0)
    write = taken(one)
    assert write.expect is None
    assert one.active
    assert one.may_act(0.0)
    assert one.generation == 1
    assert one.active_url(0.0) == A


def test_a_tenure_is_renewed_and_keeps_its_generation() -> None:
    one = contender()
    taken(one)
    assert one.next_call(2.9) is None
    write = renewed(one, 3.0)
    assert write.expect == "v1"
    assert write.record.generation == 1
    one.on_seen((write.record, "v2"), 3.1)
    assert one.may_act(11.9)
    assert not one.may_act(12.0)  # counted from the beginning of the write, less the margin


def test_without_renewals_the_holder_stops_before_anybody_else_begins() -> None:
    one, other = contender(A), contender(B)
    record = taken(one).record
    other.next_call(0.0)
    other.on_seen((record, "v1"), 0.0)
    assert one.may_act(8.9)
    assert not one.may_act(9.0)
    assert other.next_call(9.9) == Look()
    other.on_seen((record, "v1"), 9.9)
    write = renewed(other, 10.9)
    assert write.expect == "v1"
    assert write.record.generation == 2


def test_a_renewal_whose_calls_fail_is_written_three_times_before_the_tenure_is_over() -> None:
    one = contender()
    taken(one)
    for now in (3.0, 6.0, 9.0):
        renewed(one, now)
        one.on_failed(now + CALL_S)
    assert not one.active  # at 11 s: another one may take over from 10 s on
    assert one.ending is Ending.LATE
    assert one.next_call(12.0) == Look()


def test_a_renewal_that_a_standby_sees_makes_it_wait_again() -> None:
    other = contender(B)
    first = TenureRecord("x", A, 7, 1, 10.0)
    other.next_call(0.0)
    other.on_seen((first, "v1"), 0.0)
    assert other.active_url(5.0) == A
    other.next_call(9.0)
    other.on_seen((TenureRecord("x", A, 7, 2, 10.0), "v2"), 9.0)
    for now in (12.0, 18.5):
        assert other.next_call(now) == Look()
        other.on_seen((TenureRecord("x", A, 7, 2, 10.0), "v2"), now)
    assert renewed(other, 19.5).record.generation == 8
    assert other.active_url(19.5) == ""


def test_a_tenure_that_was_given_back_is_taken_at_once() -> None:
    one, other = contender(A), contender(B)
    taken(one)
    given_back = one.resign()
    assert given_back is not None
    assert given_back.expect == "v1"
    assert not one.active
    assert one.next_call(100.0) is None
    other.next_call(1.0)
    other.on_seen((given_back.record, "v2"), 1.0)
    assert renewed(other, 1.0).record.generation == 2


def test_a_standby_has_nothing_to_give_back() -> None:
    assert contender().resign() is None


def test_a_frozen_holder_may_not_act_when_it_goes_on_and_finds_its_generation_old() -> None:
    one = contender()
    taken(one)
    assert not one.may_act(60.0)  # before anything was asked
    assert one.next_call(60.0) == Look()  # so long after the end it counts itself out
    assert not one.active
    one.on_seen((TenureRecord("x", B, 2, 1, 10.0), "w1"), 60.0)
    assert not one.active
    assert one.active_url(60.0) == B


def test_a_holder_frozen_for_less_finds_out_by_its_renewal() -> None:
    one = contender()
    taken(one)
    write = renewed(one, 9.5)
    assert not one.may_act(9.5)
    one.on_conflict(9.5)
    assert one.next_call(9.5) == Look()
    one.on_seen((TenureRecord("x", B, 2, 1, 10.0), "w1"), 9.5)
    assert not one.active
    assert one.ending is Ending.OTHER
    assert write.expect == "v1"


def test_a_record_that_was_deleted_ends_the_tenure() -> None:
    one = contender()
    taken(one)
    renewed(one, 3.0)
    one.on_conflict(3.1)
    assert one.next_call(3.1) == Look()
    one.on_seen(None, 3.2)
    assert not one.active
    assert one.ending is Ending.DELETED


def test_who_stepped_down_is_not_the_active_tracker() -> None:
    """Storage took a renewal late and then nothing: the log named this very tracker as the active one."""
    one = contender()
    taken(one)
    write = renewed(one, 3.0)
    one.on_seen((write.record, "v2"), 5.5)  # others count from here, we from the write's beginning
    now = 5.5
    while one.active:
        now = one.next_wakeup()
        assert one.next_call(now) is not None
        one.on_failed(now)
    assert now < 15.5
    assert one.active_url(now) == ""


def test_a_holder_that_nobody_replaced_goes_on_with_its_generation() -> None:
    one = contender()
    taken(one)
    write = renewed(one, 9.9)
    assert not one.may_act(9.9)
    one.on_seen((write.record, "v2"), 9.9)
    assert one.may_act(9.9)
    assert one.generation == 1


def test_a_write_whose_answer_was_lost_counts_from_its_beginning() -> None:
    one = contender()
    taken(one)
    lost = renewed(one, 3.0)
    one.on_failed(5.5)
    again = renewed(one, 6.5)
    assert again.expect == "v1"
    one.on_conflict(6.6)
    assert one.next_call(6.6) == Look()
    one.on_seen((lost.record, "v2"), 6.7)
    assert one.active
    assert one.may_act(11.9)
    assert not one.may_act(12.0)


def test_a_takeover_whose_answer_was_lost_is_found_by_the_next_look() -> None:
    one = contender()
    one.next_call(0.0)
    one.on_seen(None, 0.0)
    lost = renewed(one, 0.0)
    one.on_failed(2.5)
    assert not one.may_act(2.5)
    renewed(one, 3.5)
    one.on_conflict(3.5)
    assert one.next_call(3.5) == Look()
    one.on_seen((lost.record, "v1"), 3.5)
    assert one.active
    assert one.may_act(8.9)
    assert not one.may_act(9.0)


def test_a_deleted_record_ends_the_tenure_and_the_next_generation_is_greater() -> None:
    one = contender(first=1_700_000_000)
    taken(one)
    assert one.generation == 1_700_000_000
    renewed(one, 3.0)
    one.on_conflict(3.0)
    one.next_call(3.0)
    one.on_seen(None, 3.0)
    assert not one.active
    assert renewed(one, 3.0).record.generation == 1_700_000_001


def test_a_store_that_fails_is_asked_again_and_not_at_once() -> None:
    one = contender()
    assert one.next_call(0.0) == Look()
    assert one.next_call(0.1) is None  # one call at a time
    one.on_failed(2.5)
    assert one.next_call(3.4) is None
    assert one.next_call(3.5) == Look()


@pytest.mark.parametrize("data", [
    b"", b"{}", b"\xff", b"[" * 5000,
    encode_record(TenureRecord("h", "u" * 201, 1, 1, 10.0)),
    encode_record(TenureRecord("h", "a\x1bb", 1, 1, 10.0)),
    encode_record(TenureRecord("h", A, -1, 1, 10.0)), encode_record(TenureRecord("h", A, 1, 1, 1e9)),
    encode_record(TenureRecord("h", A, 2**60, 1, 10.0)),
])  # fmt: skip
def test_a_record_that_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        decode_record(data)


def test_a_record_survives_its_store() -> None:
    record = TenureRecord("h", A, 7, 3, 10.0)
    assert decode_record(encode_record(record)) == record
    assert decode_record(encode_record(record)[:-1] + b',"later":1}') == record


# -- several contenders ----------------------------------------------------------------------------


@dataclass
class Store:
    """A store that compares versions; records whose write was taken last, and when it began."""

    version: int = 0
    record: TenureRecord | None = None

    def put(self, write: Write) -> str | None:
        if write.expect != (str(self.version) if self.record else None):
            return None
        self.version += 1
        self.record = write.record
        return str(self.version)


@dataclass
class Player:
    """A contender with a clock of its own, on the way to a store."""

    one: Contender
    rate: float
    offset: float = 0.0
    frozen_until: float = 0.0
    call: int = 0  # number of the call under way
    began: dict[int, float] = field(default_factory=dict)  # own time, by renewal
    taken: float = -1e9  # own time at which its last write that was taken began

    def clock(self, real: float) -> float:
        return real * self.rate + self.offset


class World:
    """Contenders over one store, in virtual time. Each answer is late, lost, or an error; writes may be taken later."""

    def __init__(self, seed: int, players: int, *, drift: float, jumps: bool, loss: float) -> None:
        self.dice = random.Random(seed)
        self.store = Store()
        self.jumps, self.loss = jumps, loss
        self.players = []
        for n in range(players):
            rate = 1 + self.dice.uniform(-drift, drift)
            one = Contender(f"h{n}", f"http://t{n}:7400", first=1, now=0.0)
            self.players.append(Player(one, rate))
        self.order = itertools.count()
        self.heap: list[tuple[float, int, tuple[object, ...]]] = []
        self.generations: dict[int, str] = {}
        self.overlap_s = 0.0
        self.active_s = 0.0
        for n in range(players):
            self.at(self.dice.uniform(0, 2), ("wake", n))

    def at(self, when: float, what: tuple[object, ...]) -> None:
        heapq.heappush(self.heap, (when, next(self.order), what))

    def run(self, until: float) -> None:
        now = 0.0
        while self.heap and self.heap[0][0] < until:
            when, _, what = heapq.heappop(self.heap)
            acting = [p for p in self.players if p.one.may_act(p.clock(when))]
            self.overlap_s += (when - now) * (len(acting) > 1)
            self.active_s += (when - now) * bool(acting)
            now = when
            self.happen(what, now)
            self.check(now)

    def happen(self, what: tuple[object, ...], real: float) -> None:
        match what:
            case ("wake", int(n)):
                self.wake(self.players[n], n, real)
            case ("reach", int(n), int(call), (Look() | Write()) as asked):
                self.reach(self.players[n], n, call, asked, real)
            case ("answer", int(n), int(call), asked, said):
                self.answer(self.players[n], call, asked, said, real)

    def wake(self, player: Player, n: int, real: float) -> None:
        dice = self.dice
        self.at(real + dice.uniform(0.05, 0.3), ("wake", n))
        if real < player.frozen_until:
            return
        if dice.random() < 0.002:
            player.frozen_until = real + dice.choice([3.0, 8.0, 15.0, 40.0])
            return
        if self.jumps and dice.random() < 0.003:
            player.offset += dice.choice([1.0, 6.0, 30.0])
        asked = player.one.next_call(player.clock(real))
        if asked is None:
            return
        player.call += 1
        if isinstance(asked, Write):
            player.began[asked.record.renewal] = player.clock(real)
        delay = dice.choice([0.01, 0.01, 0.05, 0.3, 2.0, 6.0])
        if dice.random() >= self.loss / 2:
            self.at(real + delay, ("reach", n, player.call, asked))
        self.at(real + CALL_S, ("answer", n, player.call, asked, "failed"))

    def reach(self, player: Player, n: int, call: int, asked: Look | Write, real: float) -> None:
        """A call gets to the store, perhaps long after its sender gave it up."""
        said: object
        if isinstance(asked, Look):
            found = self.store.record
            said = None if found is None else (found, str(self.store.version))
        else:
            said = self.store.put(asked) or "conflict"
            if said != "conflict":
                player.taken = max(player.taken, player.began[asked.record.renewal])
                holder = self.generations.setdefault(asked.record.generation, asked.record.holder)
                assert holder == asked.record.holder, "two tenures with one generation"
        if self.dice.random() >= self.loss / 2:
            self.at(real + self.dice.choice([0.01, 0.2, 1.0]), ("answer", n, call, asked, said))

    def answer(self, player: Player, call: int, asked: object, said: object, real: float) -> None:
        if call != player.call:
            return  # it was given up
        if real < player.frozen_until:  # it waits in the socket
            self.at(player.frozen_until, ("answer", self.players.index(player), call, asked, said))
            return
        player.call += 1
        now = player.clock(real)
        match asked, said:
            case _, "failed":
                player.one.on_failed(now)
            case Write(), "conflict":
                player.one.on_conflict(now)
            case Write() as write, str(version):
                player.one.on_seen((write.record, version), now)
            case Look(), None | (TenureRecord(), str()):
                player.one.on_seen(said, now)  # type: ignore[arg-type]

    def check(self, real: float) -> None:
        for player in self.players:
            now = player.clock(real)
            if player.one.may_act(now):
                assert now - player.taken < TENURE_S, "acts beyond the TTL of its last write"


WORLDS = st.tuples(st.integers(0, 2**32), st.integers(2, 3))


@settings(max_examples=60, deadline=None)
@given(WORLDS, st.sampled_from([0.0, 0.05, 0.3]))
def test_with_honest_clocks_no_two_are_ever_active(world: tuple[int, int], loss: float) -> None:
    """Whatever is late, lost or frozen; clocks differ by offsets and by a twentieth in their rates."""
    run = World(*world, drift=0.04, jumps=False, loss=loss)
    run.run(200.0)
    assert run.overlap_s == 0.0


@settings(max_examples=60, deadline=None)
@given(WORLDS, st.sampled_from([0.0, 0.05, 0.3]))
def test_when_clocks_jump_none_acts_beyond_its_ttl(world: tuple[int, int], loss: float) -> None:
    """`World.check` and its generations say what must hold: a jump may bring two, for a TTL at most."""
    World(*world, drift=0.04, jumps=True, loss=loss).run(200.0)


def test_the_worlds_have_takeovers_and_are_mostly_led() -> None:
    """Or the two tests above would test nothing."""
    tenures, led, overlaps = 0, 0.0, 0.0
    for seed in range(60):
        quiet = World(seed, 2, drift=0.04, jumps=False, loss=0.05)
        quiet.run(200.0)
        tenures, led = tenures + len(quiet.generations), led + quiet.active_s
        jumping = World(seed, 2, drift=0.04, jumps=True, loss=0.05)
        jumping.run(200.0)
        overlaps += jumping.overlap_s
    assert tenures > 120
    assert led > 0.6 * 60 * 200
    assert overlaps > 0  # what jumps of clocks do, and only they
