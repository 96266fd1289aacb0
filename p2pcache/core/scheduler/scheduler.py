"""The decider of one model's swarm on one node.

Every event comes in through `handle`, with the time, and everything that is to be done goes out as a command. The
agent and the simulator run this same code.
"""

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from p2pcache.core import bitset
from p2pcache.core.download.requester import Requester
from p2pcache.core.download.stuck_watch import StuckWatch
from p2pcache.core.mechanisms import ALL_ON, Mechanisms
from p2pcache.core.origin.origin_reader import OriginReader
from p2pcache.core.origin.without_tracker import WithoutTracker
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.peers.settings import LAST_RUNS
from p2pcache.core.racks.bridge_slots import links
from p2pcache.core.racks.bridges import Boundaries
from p2pcache.core.run_log import RunLog
from p2pcache.core.scheduler.reports import HaveBatch
from p2pcache.core.settings import STORY_LINES, SwarmSettings
from p2pcache.core.swarm import events, snapshot
from p2pcache.core.swarm.commands import Blame, Command, Finished, Stuck, WantedDone
from p2pcache.core.swarm.counters import Counters
from p2pcache.core.swarm.events import Event, Outcome, Source
from p2pcache.core.swarm.run_states import RunStates
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.ids import NodeId, RunIndex, RunSet


class Scheduler:
    """Hands each event to the part that it concerns, then lets each part act.

    `Requester` asks neighbours, `OriginReader` reads the origin, `HaveBatch` tells neighbours what is here, and
    `StuckWatch` tells the tracker what doesn't come. They share the `RunStates` and the `PeerBook`.

    Invariants (`check`): those of its parts.
    """

    def __init__(
        self, *, node: NodeId, run_bytes: Sequence[int], have: RunSet, settings: SwarmSettings,
        seed: int, tracker: bool, now: float, story_lines: int = STORY_LINES,
        on: Mechanisms = ALL_ON,
    ) -> None:  # fmt: skip
        """Start with the runs that are here already. The same events and the same seed give the same commands.

        If all are here, no `Finished` is said. Without a tracker we are the whole swarm until `Members` says otherwise,
        and read the origin at once. With one, nothing is read until it grants it, or is lost after `Members` came: a
        dead tracker must not start a storm on the origin. The story keeps so many entries, over all runs.
        """
        self.counters = Counters()
        self._run_bytes = run_bytes
        self._settings = settings
        self._node = node
        self._on = on
        self._log = RunLog(story_lines)
        self._states = RunStates(len(run_bytes), have)
        self._book = PeerBook(Boundaries(node, len(run_bytes)))
        context = SwarmContext(
            node, run_bytes, self._states, self._book, settings, Random(seed), self.counters, self._log, on
        )  # fmt: skip
        self._requester = Requester(context, now)
        self._by_itself = WithoutTracker(context, self._requester.pace, tracker=tracker, now=now)
        self._origin = OriginReader(context, self._by_itself, now)
        self._epoch: int | None = None  # of the tracker that we were with last
        self._have_batch = HaveBatch(settings, run_bytes)
        self._progress_at = now  # when a needed run last came, or came into reach
        self._news_at = now  # when a neighbour anywhere last had a needed run
        self._stuck = StuckWatch(context, now)
        self._wanted_open = False  # the last `Wanted` isn't answered yet
        self._out: list[Command] = []
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            events.PeerJoined: self._on_peer_joined,
            events.PeerLeft: self._on_peer_left,
            events.PeerHas: self._on_peer_has,
            events.RequestEnded: self._on_request_ended,
            events.FetchEnded: self._on_fetch_ended,
            events.RunsProved: lambda event, at: self._proved(
                event.runs & self._states.full, event.source, at
            ),
            events.RunsLost: self._on_runs_lost,
            events.LeaseGranted: self._on_lease_granted,
            events.LeaseRevoked: self._on_lease_revoked,
            events.TrackerUp: self._on_tracker_up,
            events.TrackerDown: lambda event, at: self._by_itself.on_tracker_down(
                at, unheard=event.unheard
            ),
            events.Members: self._on_members,
            events.DialFailed: self._on_dial_failed,
            events.Reachable: lambda *_: self._by_itself.owners.on_reachable(),
            events.Urgent: lambda event, at: self._change_needs(
                self._states.make_urgent, event.runs, at
            ),
            events.Wanted: self._on_wanted,
            events.Tick: lambda *_: None,  # each part looks at its deadline after every event
        }

    # -- events in, commands out --------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """An event happened; returns what is to be done. Time never goes back.

        Raises:
            LocalProtocolError: a request or fetch ended that isn't in flight.
        """
        out = self._out = []
        self._handlers[type(event)](event, now)
        requester = self._requester
        if now >= requester.deadline:
            requester.act(self._origin.readings.live, self._progress_at, now, out)
        if requester.deliveries.changed:
            self._on_deliveries_changed(now)
        # Most events are have batches. They matter to the origin's side only if a lease waits to be read.
        if type(event) is not events.PeerHas or self._origin.heeds_haves:
            self._origin.act(now, self._quiet_s(now), out)
        if now >= self._have_batch.due_at:
            out.append(self._have_batch.take_batch(now))
        if now >= self._stuck.deadline and self._looks_out:
            self._report_stuck(now)
        return out

    def next_wakeup(self) -> float | None:
        """When to send a `Tick` if nothing happens before then; None: never."""
        wake = min(self._requester.deadline, self._origin.next_wakeup(), self._have_batch.due_at)
        if self._stuck.deadline < wake and self._states.needed and self._looks_out:
            wake = self._stuck.deadline
        return None if wake == math.inf else wake

    @property
    def have(self) -> RunSet:
        """Proved runs."""
        return self._states.have

    @property
    def untold(self) -> RunSet:
        """Proved runs that neighbours are yet to be told."""
        return self._have_batch.runs

    @property
    def complete(self) -> bool:
        """Whether every run is proved."""
        return not self._states.missing

    @property
    def origin_runs(self) -> RunSet:
        """Runs that we may read or are reading from the origin for others: the leases of an announce."""
        states = self._states
        return states.leased if self._by_itself.is_cut_off else states.leased | states.fetching

    @property
    def wanted(self) -> RunSet:
        """Wanted runs, here or not, as an announce says them."""
        return self._states.wanted

    @property
    def credit(self) -> int:
        """Leases that we can work on at once, as an announce says; 0: we want none."""
        return self._origin.credit

    @property
    def cut_off(self) -> bool:
        """Whether no other node can be reached, so that this node reads all that it needs from the origin."""
        return bool(self._states.needed) and self._by_itself.is_cut_off

    @property
    def pace_s(self) -> float:
        """Seconds from one run to the next; 0: not known."""
        return self._requester.pace.received_s

    def story(self, run: RunIndex) -> list[str]:
        """What happened to a run lately, the oldest first: why isn't it here, and which node sent it?"""
        return self._log.story(run)

    def waits_for(self, now: float) -> str:
        """What we wait for at this moment, a key of `snapshot.WAITS`; empty: nothing is needed."""
        states = self._states
        if not states.needed:
            return ""
        if states.requested:
            return "peers"
        if states.fetching:
            return "origin"
        if states.needed & self._book.rarity.held:
            return "busy"
        return self._by_itself.waits_for(now) if self._settings.origin_fetches else "site"

    def view(self, now: float) -> snapshot.SwarmView:
        """Everything at this moment, for people; O(neighbours + requests in flight)."""
        states, held = self._states, self._book.rarity.held
        return snapshot.SwarmView(
            states.needed, states.needed & held, self.waits_for(now),
            tuple(self._book.views(states.needed, now)), tuple(self._requester.requests.views(now)),
            tuple(self._origin.readings.views(now)),
            tuple((run, now - since) for run, since in self._origin.waiting.items()),
            self._by_itself.tracker_up, self._by_itself.alone(now),
        )  # fmt: skip

    def check(self) -> None:
        """Assert the invariants; O(neighbours + requests in flight)."""
        self._states.check()
        self._book.check()
        self._requester.check()
        self._origin.check()

    # -- neighbours -------------------------------------------------------------------------

    def _on_peer_joined(self, event: events.PeerJoined, now: float) -> None:
        self._drop(event.peer, now)  # a new connection replaces the old one
        peer = self._book.on_connected(event.peer, event.have & self._states.full, now, event.rtt_s)
        self._origin.on_peer_joined(event.peer)
        if peer is None:
            return
        self._requester.deliveries.on_connected(peer)
        if peer.have & self._states.needed:
            if peer.delivers:
                self._progress_at = now
            self._requester.deadline = now

    def _on_peer_left(self, event: events.PeerLeft, now: float) -> None:
        if self._drop(event.peer, now):
            self._origin.on_peer_left(now)

    def _drop(self, node: NodeId, now: float) -> bool:
        if (peer := self._book.on_disconnected(node)) is not None:
            self._requester.on_peer_gone(peer, now)
        return peer is not None

    def _on_peer_has(self, event: events.PeerHas, now: float) -> None:
        peer = self._book.peers.get(event.peer)
        if peer is None:
            return  # it is banned, or the batch overtook the end of its connection
        if not event.runs:
            self._requester.on_recall(peer, event.load, now)
            return
        peer.on_load(event.load, now, self._settings.full_rest_s)
        runs = self._book.on_have(peer, event.runs & self._states.full) & self._states.missing
        if runs and not peer.delivers:
            self._requester.deadline = now
        elif runs:
            if not self._by_itself.tracker_up:
                if fresh := runs & ~self._book.rarity.common:  # nobody else has them
                    self._by_itself.on_others_read(peer.node, fresh, self._quiet_s(now), now)
                self._by_itself.replan_soon()
            if needed := runs & self._states.needed:
                self._news_at = now
                if needed & self._book.reach[peer.distance]:
                    self._progress_at = now
            self._requester.on_have(peer, now, self._out)

    def _quiet_s(self, now: float) -> float:
        """For how long no needed run has come to this node or its neighbours, wherever they are."""
        return now - max(self._progress_at, self._news_at)

    def _on_request_ended(self, event: events.RequestEnded, now: float) -> None:
        outcome, out = event.outcome, self._out
        run = self._requester.on_request_ended(event.request, outcome, now, out, event.waited_s)
        for command in out:
            if isinstance(command, Blame):
                self._origin.on_peer_banned(command.peer, now)
        self._settle(run, outcome, Source.PEER, now)

    # -- runs -------------------------------------------------------------------------------

    def _settle(self, run: RunIndex, outcome: Outcome, source: Source, now: float) -> None:
        if outcome is Outcome.DONE:
            self._proved(1 << run, source, now)
        elif outcome is Outcome.FAILED:
            self._requester.requests.halted = True
            self._origin.halt(self._out)

    def _proved(self, runs: RunSet, source: Source, now: float) -> None:
        fresh = runs & self._states.missing
        self.counters.on_bytes_proved(source, self._bytes(fresh), self._bytes(runs & ~fresh))
        if not fresh:
            return
        self._origin.on_proved(fresh, self._out)
        self._requester.on_proved(fresh, now, self._out)
        self._states.set_proved(fresh)
        ends = self._states.needed.bit_count() <= LAST_RUNS
        # Without a tracker owners see by have batches what was read from storage.
        pace_s = self.pace_s if self._by_itself.tracker_up and not ends else 0.0
        self._have_batch.add(fresh, self._book.rarity_in_rack.common if pace_s else 0, pace_s, now)
        self._progress_at = now
        if self._states.needed:
            self._requester.deadline = now
        if not self._states.missing:
            self._out.append(Finished())
        self._answer_wanted()

    def _bytes(self, runs: RunSet) -> int:
        return sum(self._run_bytes[run] for run in bitset.members(runs))

    def _answer_wanted(self) -> None:
        if self._wanted_open and not self._states.needed:
            self._wanted_open = False
            self._out.append(WantedDone())

    def _on_runs_lost(self, event: events.RunsLost, now: float) -> None:
        self._have_batch.runs &= ~event.runs
        self._change_needs(self._states.set_lost, event.runs, now)

    def _on_wanted(self, event: events.Wanted, now: float) -> None:
        self._change_needs(self._states.want_only, event.runs, now)
        self._wanted_open = True
        self._progress_at = now  # from now on we wait for these runs
        self._origin.return_unwanted()
        self._answer_wanted()

    def _change_needs(self, change: Callable[[RunSet], object], runs: RunSet, now: float) -> None:
        """Change which runs are needed. If none was before, earlier dial failures don't count towards isolation."""
        idle = not self._states.needed
        change(runs)
        if idle:
            self._origin.on_perhaps_alone(now)
        self._by_itself.replan(now)
        self._requester.deadline = now

    # -- tracker and origin -----------------------------------------------------------------

    def _on_fetch_ended(self, event: events.FetchEnded, now: float) -> None:
        run = self._origin.on_fetch_ended(event.fetch, event.outcome, now, self._out, event.flow_s)
        self._settle(run, event.outcome, Source.ORIGIN, now)
        self._requester.deadline = now

    def _on_lease_granted(self, event: events.LeaseGranted, now: float) -> None:
        self._by_itself.on_granted(event.in_flight)
        self._origin.on_granted(event.runs, now)

    def _on_lease_revoked(self, event: events.LeaseRevoked, now: float) -> None:
        self._origin.on_revoked(event.runs, self._out)
        self._requester.deadline = now

    def _on_tracker_up(self, event: events.TrackerUp, now: float) -> None:
        if self._epoch not in {None, event.epoch}:
            self._by_itself.on_granted(0)  # how many leases were in flight before is void
            self._blame_again()
            if self._states.needed:
                self._requester.deadline = now
        self._epoch = event.epoch
        self._stuck.on_tracker_up(now)
        self._origin.on_tracker_up(now)

    def _on_members(self, event: events.Members, now: float) -> None:
        self._by_itself.owners.on_members(event.nodes)
        self._by_itself.replan(now)
        self._book.on_members(event.nodes, event.rack, event.site)
        if self._book.has_boundaries and self._states.needed:
            self._requester.deadline = now  # what may be asked of which neighbour has changed
            rack, site = event.rack, event.site
            beyond = [(rack, event.racks), (rack, (site,)), (site, event.sites)]
            near = {one for group, others in beyond for one in links(self._node, group, others)}
            known = self._book.peers.keys() | self._book.banned.keys()
            self._out += self._book.dials(sorted(near - known))

    def _on_dial_failed(self, event: events.DialFailed, now: float) -> None:
        self._book.dialling.discard(event.peer)
        self._origin.on_dial_failed(event.peer, now)

    def _on_deliveries_changed(self, now: float) -> None:
        """Some neighbours are doubted, or believed again: others may have to read what those have."""
        deliveries = self._requester.deliveries
        changed, deliveries.changed = deliveries.changed, {}
        for node, believed in changed.items():
            if believed:
                self._by_itself.owners.on_peer_joined(node)
            else:
                self._by_itself.owners.on_peer_failed(node)
                self._stuck.on_doubted(node, now)
        recovered = tuple(node for node, believed in changed.items() if believed)
        if recovered and self._by_itself.tracker_up:
            self._out.append(Stuck(0, recovered=recovered))
        self._by_itself.replan(now)

    @property
    def _looks_out(self) -> bool:
        """Whether runs that are stuck are looked for: there is a tracker to tell, or no neighbour of many."""
        alone = not self._book.peers and len(self._by_itself.owners.members) > 1
        return self._on.stuck_watch and (self._by_itself.tracker_up or alone)

    def _report_stuck(self, now: float) -> None:
        """Tell the tracker of stuck runs. A node without neighbours finds out whether it reaches anybody."""
        waited, stuck = self._stuck.find_stuck(self._progress_at, now)
        reads = self._states.leased | self._states.fetching
        if not self._book.peers and not reads and waited:
            self._origin.probe_isolation(now, self._out)
            self._origin.act(now, self._quiet_s(now), self._out)
        if stuck.runs and self._by_itself.tracker_up:
            self._blame_again()
            self._out.append(stuck)

    def _blame_again(self) -> None:
        """Tell the tracker again which nodes sent us wrong bytes: one that restarted would name them to us for ever."""
        self._out += [Blame(node, run) for node, run in self._book.banned.items()]
