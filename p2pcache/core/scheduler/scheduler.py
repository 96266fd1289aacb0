"""One model's swarm on one node: which neighbour is asked for which run, and when.

Pure: time and dice are arguments, every event comes through `handle`, every wish goes out as a
command. The same object runs in the agent and in the simulator.
"""

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from p2pcache.core import bitset
from p2pcache.core.download.requester import PeerSide
from p2pcache.core.download.stuck_watch import StuckWatch
from p2pcache.core.origin.origin_reader import OriginReader
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.racks.bridge_slots import links
from p2pcache.core.racks.bridges import Boundaries
from p2pcache.core.scheduler.have_batch import News
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm import events, snapshot
from p2pcache.core.swarm.commands import Blame, Command, Dial, Finished, Stuck, WantedDone
from p2pcache.core.swarm.events import Event, Outcome, Source
from p2pcache.core.swarm.run_states import RunBook
from p2pcache.core.swarm.story import LINES, Counters, Diary


class Scheduler:
    """Decides for one model on one node.

    Invariants (`check`): what `RunBook`, `PeerBook`, `PeerSide` and `OriginReader` state.
    """

    def __init__(
        self, *, node: int, run_bytes: Sequence[int], have: int, settings: SwarmSettings,
        seed: int, tracker: bool, now: float, story_lines: int = LINES,
    ) -> None:  # fmt: skip
        """Start from what is had already.

        Args:
            node: our id.
            run_bytes: length of each run in bytes.
            have: bits of the runs that are proved. If that is all of them, `complete` is true
                from the start and no `Finished` is said.
            settings: knobs.
            seed: of the dice; same events and same seed give the same commands.
            tracker: whether one is configured at all. Without one we are the whole swarm
                (until `Members` says otherwise) and read the origin at once; with one, nothing
                is read before it has granted it or is gone, and then only if
                `Members` were told: a dead tracker must not become an origin storm.
            now: seconds, of the clock that `handle` is called with.
            story_lines: of `story` that are kept, over all runs.
        """
        dice = Random(seed)
        self._run_bytes = run_bytes
        self._settings = settings
        self._node = node
        self._diary = diary = Diary(story_lines)
        self._mine = mine = RunBook(len(run_bytes), have)
        self._book = book = PeerBook(settings, Boundaries(node, len(run_bytes)))
        self._peers = PeerSide(run_bytes, mine, book, settings, dice, diary, now)
        self._origin = OriginReader(
            node, mine, book, settings, dice, diary, self._peers.tempo, tracker=tracker, now=now
        )  # fmt: skip
        self._tracker_up = False
        self._epoch: int | None = None  # of the tracker that we were with last
        self._news = News(settings)
        self._progress_at = now  # when something wanted last came in or into reach
        self._stuck = StuckWatch(mine, book, self._peers.deliveries, settings, now)
        self._wish_open = False  # a `Wanted` that is still to be answered
        self._out: list[Command] = []
        self._doors: dict[type[Any], Callable[[Any, float], None]] = {
            events.PeerJoined: self._on_peer_joined,
            events.PeerLeft: self._on_peer_left,
            events.PeerHas: self._on_peer_has,
            events.RequestEnded: self._on_request_ended,
            events.FetchEnded: self._on_fetch_ended,
            events.RunsProved: self._on_runs_proved,
            events.RunsLost: self._on_runs_lost,
            events.LeaseGranted: self._on_lease_granted,
            events.LeaseRevoked: self._on_lease_revoked,
            events.TrackerUp: self._on_tracker_up,
            events.TrackerDown: self._on_tracker_down,
            events.Members: self._on_members,
            events.DialFailed: self._on_dial_failed,
            events.Demanded: self._on_demanded,
            events.Wanted: self._on_wanted,
            events.Tick: lambda *_: None,  # deadlines are looked at after every event
        }

    # -- the door ---------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in what happened; returns what to do about it.

        Raises:
            LocalProtocolError: an end of a request or fetch that isn't in flight.
        """
        out: list[Command] = []
        self._out = out
        self._doors[type(event)](event, now)
        peers = self._peers
        if now >= peers.look_at:
            peers.deliveries.look(now, self._progress_at)
            peers.act(now, out)
            if peers.idle:
                peers.duplicate(self._origin.readings.values(), now, out)
        if peers.deliveries.news:
            self._heed_deliveries(now)
        # Nine events of ten are a neighbour's news, which mean nothing to a node that has no lease to wait for.
        if type(event) is not events.PeerHas or self._origin.heeds_haves:
            self._origin.act(now, now - self._progress_at, out)
        self._news.tell(now, out)
        if self._tracker_up and now >= self._stuck.look_at:
            self._watch(now)
        return out

    def next_wakeup(self) -> float | None:
        """When to send a `Tick`, if nothing happens before; None: only events matter."""
        wake = self._peers.look_at
        origin_at = self._origin.next_wakeup()
        if origin_at < wake:
            wake = origin_at
        tell_at = self._news.next_at()
        if tell_at < wake:
            wake = tell_at
        if self._tracker_up and self._stuck.look_at < wake and self._mine.needed:
            wake = self._stuck.look_at
        return None if wake == math.inf else wake

    @property
    def have(self) -> int:
        """Bits of the proved runs."""
        return self._mine.have

    @property
    def complete(self) -> bool:
        """Whether every run is proved."""
        return not self._mine.missing

    @property
    def origin_runs(self) -> int:
        """Runs (bits) that we may read or are reading from the origin: the leases of an announce."""
        return self._mine.leased | self._mine.fetching

    @property
    def wanted(self) -> int:
        """Bits of the runs that are to be got (or were): an announce says it."""
        return self._mine.wanted

    @property
    def credit(self) -> int:
        """Leases that we can work on at once, as an announce says it; 0: we want none."""
        return self._origin.credit

    @property
    def cut_off(self) -> bool:
        """Whether no other node can be reached, so that all that is missing is read from the origin."""
        return bool(self._mine.needed) and self._origin.is_cut_off

    @property
    def tempo_s(self) -> float:
        """Seconds from one new run to the next in this swarm; 0: not known."""
        return self._peers.tempo.seconds

    @property
    def counters(self) -> Counters:
        """Bytes by source and what else is counted."""
        return self._diary.counters

    def story(self, run: int) -> list[str]:
        """What happened to a run lately, oldest first: why isn't it here, who sent it?"""
        return self._diary.story(run)

    def waits_for(self, now: float) -> str:
        """What holds us up at this moment, a key of `view.WAITS`; empty: nothing is missing."""
        mine = self._mine
        return snapshot.waits_for(
            needed=mine.needed, held=self._book.rarity.held, asked=mine.asked,
            fetching=mine.fetching, tracker_up=self._tracker_up, alone=self._origin.alone(now),
        )  # fmt: skip

    def view(self, now: float) -> snapshot.SwarmView:
        """Everything at this moment, for people; O(neighbours + what is in flight)."""
        mine, held = self._mine, self._book.rarity.held
        return snapshot.SwarmView(
            mine.needed, mine.needed & held, self.waits_for(now),
            tuple(self._book.views(mine.needed, now)), tuple(self._peers.views(now)),
            tuple(self._origin.views(now)),
            tuple((run, now - since) for run, since in self._origin.waiting.items()),
            self._tracker_up, self._origin.alone(now),
        )  # fmt: skip

    def check(self) -> None:
        """Assert the invariants; O(neighbours + what is in flight)."""
        self._mine.check()
        self._book.check()
        self._peers.check()
        self._origin.check()

    # -- neighbours -------------------------------------------------------------------------

    def _on_peer_joined(self, event: events.PeerJoined, now: float) -> None:
        self._drop(event.peer, now)  # a new connection replaces the old one
        peer = self._book.join(event.peer, event.have & self._mine.full, now, event.rtt_s)
        self._origin.on_peer_joined(event.peer)
        if peer is not None:
            self._peers.deliveries.joined(peer)
        if peer is not None and peer.have & self._mine.needed and peer.delivers:
            self._progress_at = now
            self._peers.look_at = now

    def _on_peer_left(self, event: events.PeerLeft, now: float) -> None:
        if self._drop(event.peer, now):
            self._origin.on_peer_left(event.peer, now)

    def _drop(self, node: int, now: float) -> bool:
        peer = self._book.leave(node)
        if peer is not None:
            self._peers.abandon(peer, now)
        return peer is not None

    def _on_peer_has(self, event: events.PeerHas, now: float) -> None:
        peer = self._book.peers.get(event.peer)
        if peer is None:
            return  # barred, or the news overtook the end of its connection
        peer.load = event.load
        if not event.runs:
            self._peers.has_room(peer, now)
            return
        held = self._book.rarity.held
        news = self._book.gained(peer, event.runs & self._mine.full) & self._mine.missing
        if news and not peer.delivers:
            self._peers.look_at = now
        elif news:
            if not self._tracker_up:
                if fresh := news & ~held:
                    self._origin.on_others_read(peer.node, fresh, now - self._progress_at, now)
                self._origin.replan_soon()
            self._progress_at = now if news & self._mine.needed else self._progress_at
            self._peers.offer(peer, news, now, self._out)

    def _on_request_ended(self, event: events.RequestEnded, now: float) -> None:
        run = self._peers.ended(event.request, event.outcome, now, self._out, event.waited_s)
        for command in self._out:
            if isinstance(command, Blame):
                self._origin.on_peer_banned(command.peer, now)
        self._settle(run, event.outcome, Source.PEER, now)

    # -- runs -------------------------------------------------------------------------------

    def _settle(self, run: int, outcome: Outcome, source: Source, now: float) -> None:
        if outcome is Outcome.DONE:
            self._proved(1 << run, source, now)
        elif outcome is Outcome.FAILED:
            self._peers.halt()
            self._origin.halt(self._out)

    def _proved(self, runs: int, source: Source, now: float) -> None:
        fresh = runs & self._mine.missing
        self._diary.counters.took(source, self._bytes(fresh), self._bytes(runs & ~fresh))
        if not fresh:
            return
        self._origin.on_proved(fresh, self._out)
        self._peers.proved(fresh, now, self._out)
        self._mine.prove(fresh)
        self._news.add(fresh)
        self._progress_at = now
        if self._mine.needed:
            self._peers.look_at = now
        if not self._mine.missing:
            self._out.append(Finished())
        self._answer_wish()

    def _bytes(self, runs: int) -> int:
        return sum(self._run_bytes[run] for run in bitset.members(runs))

    def _answer_wish(self) -> None:
        if self._wish_open and not self._mine.needed:
            self._wish_open = False
            self._out.append(WantedDone())

    def _on_runs_proved(self, event: events.RunsProved, now: float) -> None:
        self._proved(event.runs & self._mine.full, event.source, now)

    def _on_runs_lost(self, event: events.RunsLost, now: float) -> None:
        self._needs(self._lose, event.runs, now)

    def _lose(self, runs: int) -> None:
        self._news.lose(self._mine.lose(runs))

    def _on_demanded(self, event: events.Demanded, now: float) -> None:
        self._needs(self._mine.demand, event.runs, now)

    def _on_wanted(self, event: events.Wanted, now: float) -> None:
        self._needs(self._mine.want, event.runs, now)
        self._wish_open = True
        self._progress_at = now  # what nobody brought so far wasn't waited for
        self._origin.return_unwanted()
        self._answer_wish()

    def _needs(self, change: Callable[[int], None], runs: int, now: float) -> None:
        """What we need becomes something else: if that was nothing, who was out of reach before says nothing now."""
        idle = not self._mine.needed
        change(runs)
        if idle:
            self._origin.on_perhaps_alone(now)
        self._origin.replan(now)
        self._peers.look_at = now

    # -- tracker and origin -----------------------------------------------------------------

    def _on_fetch_ended(self, event: events.FetchEnded, now: float) -> None:
        run = self._origin.on_fetch_ended(event.fetch, event.outcome, now, self._out)
        self._settle(run, event.outcome, Source.ORIGIN, now)
        self._origin.replan(now)
        self._peers.look_at = now

    def _on_lease_granted(self, event: events.LeaseGranted, now: float) -> None:
        self._origin.on_granted(event.runs, now)

    def _on_lease_revoked(self, event: events.LeaseRevoked, now: float) -> None:
        self._origin.on_revoked(event.runs, self._out)
        self._peers.look_at = now

    def _on_tracker_up(self, event: events.TrackerUp, now: float) -> None:
        self._tracker_up = True
        if self._epoch not in {None, event.epoch}:
            self._stuck.blame_again(self._out)
            if self._mine.needed:
                self._peers.look_at = now
        self._epoch = event.epoch
        self._stuck.restart(now)
        self._origin.on_tracker_up()

    def _on_tracker_down(self, _event: events.TrackerDown, now: float) -> None:
        self._tracker_up = False
        self._origin.on_tracker_down(now)

    def _on_members(self, event: events.Members, now: float) -> None:
        self._origin.owners.on_members(event.nodes)
        self._origin.replan(now)
        self._book.placed(event.nodes, event.rack, event.site)
        if self._book.bounded and self._mine.needed:
            self._peers.look_at = now  # what we may ask for, and of whom, is another matter now
            beyond = (
                (event.rack, event.racks),
                (event.rack, (event.site,)),
                (event.site, event.sites),
            )
            near = {one for group, others in beyond for one in links(self._node, group, others)}
            known = self._book.peers.keys() | self._book.barred.keys()
            self._out += [Dial(node) for node in sorted(near - known)]

    def _on_dial_failed(self, event: events.DialFailed, now: float) -> None:
        self._origin.on_dial_failed(event.peer, now)

    def _heed_deliveries(self, now: float) -> None:
        """Some neighbours deliver no more, or again: others may have to read what they have."""
        deliveries, gave = self._peers.deliveries, self._peers.deliveries.believed
        for node in deliveries.doubted:
            self._origin.owners.on_peer_failed(node)
            self._stuck.doubted(node, now)
        for node in gave:
            self._origin.owners.on_peer_joined(node)
        if gave and self._tracker_up:
            self._out.append(Stuck(0, gives=tuple(gave)))
        deliveries.doubted, deliveries.believed = [], []
        self._origin.replan(now)

    def _watch(self, now: float) -> None:
        """Tell the tracker about window runs that no neighbour has had for a whole interval."""
        waited, stuck, lacks = self._stuck.look(self._progress_at, now)
        if not self._book.peers and not self.origin_runs and waited:
            self._origin.probe_isolation(now, self._out)
            self._origin.act(now, now - self._progress_at, self._out)
        if stuck:
            self._stuck.tell(stuck, lacks, self._out)
