"""Whether the origin's bytes are wrong for all nodes, or the storage of one node is the odd one.

The word of one node stops no other: an empty mount, another bucket or a bad cable looks to that node like a model that
was changed. So a second reader is asked: the tracker itself where it can read the origin, otherwise the node that is
granted the run next. If two bearers read the same run wrong, no more leases of the model are granted. If one reads it
right, the storage of the others is odd: they get no lease until their pull is over.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from p2pcache.core.coordinator.settings import STOP_S
from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.membership.outputs import Event, Notice, Output, ReadRun, Send
from p2pcache.core.membership.reachability import Bearer, are_all
from p2pcache.core.membership.roster import Roster
from p2pcache.core.membership.settings import WITNESSES
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.odd_reason import OddReason
from p2pcache.ids import NodeId, RunIndex, RunSet


class WitnessReport(StrEnum):
    """What the tracker found when it read a run itself."""

    NONE = "can't read run {} itself"  # it has no origin, or this doesn't answer
    RIGHT = "reads run {} right"
    WRONG = "reads run {} wrong, too"


@dataclass(slots=True)
class DoubtedRun:
    """A run that a node read wrong."""

    since: float
    accusers: Counter[NodeId] = field(default_factory=Counter)  # how often each read it wrong
    # Of the tracker, or of a node that read it right; None: the tracker is reading it.
    witness: WitnessReport | None = None


class OriginDoubts:
    """The doubts of one swarm: which nodes read which runs wrong, and what follows."""

    def __init__(self, roster: Roster, book: LeaseBook, bearer: Bearer, out: list[Output]) -> None:
        """No run is doubted yet; outputs are appended to `out`."""
        self.stop: m.Stop | None = None  # what all are told of a model whose bytes are wrong
        # Nodes that get no lease until their pull ends. With each: the message that it gets when no other node reads
        # its wanted runs, and those runs; 0 after the message was sent.
        self.odd: dict[NodeId, tuple[m.Stop, RunSet]] = {}
        self.runs: dict[RunIndex, DoubtedRun] = {}
        self._roster, self._book, self._bearer, self._out = roster, book, bearer, out
        self._stopped_at = 0.0

    @property
    def stopped_at_run(self) -> RunIndex | None:
        """The run whose bytes are wrong for all."""
        return None if self.stop is None else self.stop.run

    def on_wrong_reads(self, node: NodeId, runs: RunSet, now: float) -> None:
        """A member read these runs wrong; it is heard only about its own leases."""
        for run in self._book.on_failed(node, runs, now):
            if node not in self.odd:
                doubt = self.runs.get(run)
                # A finding gets old: mounts are mended, and disks rot. Then the run is doubted anew.
                if doubt is None or (doubt.witness is not None and now >= doubt.since + STOP_S):
                    doubt = self.runs[run] = DoubtedRun(now)
                    self._tell(node, f"it says that storage has run {run} not at all, or wrong")
                    self._out.append(ReadRun(node, self._roster.digest, run))
                doubt.accusers[node] += 1
            self._judge(run, now)

    def on_right_reads(self, node: NodeId, runs: RunSet, now: float) -> None:
        """A member has runs that it hadn't; told before the lease book hears of it. So storage has them."""
        for run in [one for one in self.runs if runs >> one & 1]:
            if run in self._book.leases and self._book.leases[run].node == node:
                doubt = self.runs[run]
                del doubt.accusers[node]  # its storage was mended meanwhile
                if self._bearer(node) not in map(self._bearer, doubt.accusers):
                    doubt.witness = WitnessReport.RIGHT
                self._judge(run, now)

    def on_witness_report(
        self, node: NodeId, run: RunIndex, report: WitnessReport, now: float
    ) -> None:
        """The tracker has read a run itself, because of the word of this node."""
        doubt = self.runs.get(run)
        if doubt is not None and doubt.witness is None:
            doubt.witness = report
        if node not in self.odd:
            self._tell(node, f"the tracker {report.format(run)}")
        self._judge(run, now)

    def credit(self, node: NodeId, credit: int, wanted: RunSet, now: float) -> int:
        """How many leases a node gets that asks for so many, of these runs: none after a stop, or with odd storage.

        A stop ends when no node wants any and a while has passed.
        """
        if credit <= 0:
            self.on_pull_over(node)
            return 0
        if self.stop is not None:
            if self._book.readers.working or now < self._stopped_at + STOP_S:
                self._out.append(Send(node, self.stop))
                return 0
            # The origin may have been repaired; two wrong reads more tell if it wasn't.
            self.stop = None
            self.runs.clear()
        if node not in self.odd:
            return credit
        self.odd[node] = self.odd[node][0], wanted
        return 0

    def on_pull_over(self, node: NodeId) -> None:
        """A node's pull is over, or the node is another process: it may try again."""
        self.odd.pop(node, None)

    def tell_hopeless(self) -> None:
        """Tell the nodes of odd storage that no other node reads what they lack."""
        for node, (stop, wanted) in self.odd.items():
            if wanted & self._book.free and not self._book.readers.working:
                self.odd[node] = stop, 0
                self._out.append(Send(node, stop))

    def _judge(self, run: RunIndex, now: float) -> None:
        """Decide what follows for a run that may be doubted."""
        doubt = self.runs.get(run)
        if doubt is None or doubt.witness is None or self.stop is not None:
            return
        bearers = {self._bearer(node) for node in doubt.accusers}
        if doubt.witness is WitnessReport.RIGHT:
            self._call_odd(doubt, run, OddReason.OTHERS_READ_IT, f"others read run {run} right")
            doubt.accusers.clear()  # a mended node isn't odd again for what the next one reads
        elif len(bearers) + (doubt.witness is WitnessReport.WRONG) >= WITNESSES:
            self._stopped_at = now
            reason = f"run {run} is gone there, or doesn't match the manifest"
            self.stop = m.Stop(self._roster.digest, run, reason)
            for node in doubt.accusers:
                self._tell(
                    node, f"by its word, too, run {run} is wrong in storage: nobody gets leases"
                )
            accuser = next(iter(doubt.accusers))
            self._out.append(Notice(Event.STOPPED, accuser, self._roster.digest))
            self._out += [Send(other, self.stop) for other in self._roster.needy()]
        elif doubt.accusers.total() > 1 and are_all(
            bearers, self._book.readers.working, self._bearer
        ):
            why = f"no other node reads it that could be asked about run {run}"
            self._call_odd(doubt, run, OddReason.NOBODY_ELSE_READS, why)

    def _call_odd(self, doubt: DoubtedRun, run: RunIndex, reason: OddReason, why: str) -> None:
        stop = m.Stop(self._roster.digest, run, why, reason)
        for node in [one for one in doubt.accusers if one not in self.odd]:
            record = self._book.readers.working.get(node)
            if record is not None:
                self.odd[node] = stop, record.wanted
                self._book.set_credit(node, 0)
                self._tell(node, f"it gets no leases for this pull: {why}")

    def _tell(self, node: NodeId, text: str) -> None:
        self._out.append(Notice(Event.DOUBTED, node, self._roster.digest, text))
