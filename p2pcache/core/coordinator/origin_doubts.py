"""What the tracker does when a member reads wrong bytes from the origin: it asks a witness, judges, and tells."""

from p2pcache.core import bitset
from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.origin_integrity import OddReason, WitnessReport
from p2pcache.core.membership.outputs import Output, ReadRun, Send, Stopped, StorageNotice
from p2pcache.core.membership.roster import Roster
from p2pcache.core.protocol import messages as m
from p2pcache.ids import NodeId, RunIndex, RunSet

_FOUND = {
    WitnessReport.NONE: "the tracker can't read run {run} itself",
    WitnessReport.RIGHT: "the tracker reads run {run} right",
    WitnessReport.WRONG: "the tracker reads run {run} wrong, too",
}
_ODD = {
    OddReason.OTHERS_READ_IT: "others read run {run} right",
    OddReason.NOBODY_ELSE_READS: "no other node reads it that could be asked about run {run}",
}


class OriginDoubts:
    """The doubts of one swarm."""

    def __init__(self, roster: Roster, book: LeaseBook) -> None:
        """No run is doubted yet; the swarm's roster and leases."""
        self._digest = roster.digest
        self._roster = roster
        self._book = book
        self._integrity = book.integrity

    def on_wrong_reads(self, node: NodeId, runs: RunSet, now: float, out: list[Output]) -> None:
        """A member read these runs wrong; it is heard only about its own leases."""
        record = self._roster.members[node]
        for run in self._book.on_failed(node, runs, now):
            fresh = self._integrity.on_wrong_read(node, run, now)
            if not record.storage_doubted:
                record.storage_doubted = True
                text = f"it says that storage has run {run} of the model not at all, or wrong"
                out.append(StorageNotice(node, self._digest, text))
            if fresh:
                out.append(ReadRun(node, self._digest, run))
            self._judge(run, now, out)

    def on_right_reads(self, node: NodeId, runs: RunSet, now: float, out: list[Output]) -> None:
        """A member has runs that it hadn't; told before the lease book hears of it."""
        for run in bitset.members(runs & self._integrity.doubted & self._book.leased):
            if self._book.leases[run].node == node:
                self._integrity.on_right_read(node, run)
                self._judge(run, now, out)

    def on_witness_report(
        self, node: NodeId, run: RunIndex, report: WitnessReport, now: float, out: list[Output]
    ) -> None:
        """The tracker has read a run itself, because of the word of this node."""
        self._integrity.on_witness_report(run, report)
        if node not in self._integrity.odd:
            out.append(StorageNotice(node, self._digest, _FOUND[report].format(run=run)))
        self._judge(run, now, out)

    def credit(self, node: NodeId, credit: int, wanted: RunSet) -> int:
        """How many leases a node gets at once: none while its storage is odd and its pull goes on.

        Args:
            node: a member.
            credit: the leases that it asks for.
            wanted: the runs that it has use for.
        """
        if credit <= 0:
            self.on_pull_over(node)
        odd = self._integrity.odd.get(node)
        if odd is None:
            return credit
        odd.wanted = wanted
        return 0

    def on_pull_over(self, node: NodeId) -> None:
        """A node's pull is over, or the node is another process: it may try again."""
        self._integrity.acquit(node)
        if node in self._roster:
            self._roster.members[node].storage_doubted = False

    def tell_hopeless(self, out: list[Output]) -> None:
        """Tell the nodes of odd storage that no other node reads what they lack."""
        if not self._integrity.odd or len(self._book.readers):
            return
        for node in self._integrity.hopeless(self._book.free):
            odd = self._integrity.odd[node]
            reason = _ODD[odd.reason].format(run=odd.run)
            out.append(Send(node, m.Stop(self._digest, odd.run, reason, odd.reason)))

    def stop_message(self) -> m.Stop:
        """What all members are told of a model whose bytes are wrong."""
        run = self._book.stopped if self._book.stopped is not None else -1
        reason = f"run {run} is gone there, or doesn't match the manifest"
        return m.Stop(self._digest, run, reason)

    def _judge(self, run: RunIndex, now: float, out: list[Output]) -> None:
        before = self._book.stopped
        for node in self._integrity.judge(run, self._book.readers, now):
            record = self._book.readers.working.get(node)
            if record is None:
                self.on_pull_over(node)
                continue
            odd = self._integrity.odd[node]
            odd.wanted = record.wanted
            self._book.set_credit(node, 0)
            text = f"it gets no leases for this pull: {_ODD[odd.reason].format(run=run)}"
            out.append(StorageNotice(node, self._digest, text))
        if self._book.stopped is not None and before is None:
            text = f"by its word, too, run {run} is wrong in storage: nobody gets leases"
            accusers = self._integrity.accusers(run)
            out += [StorageNotice(node, self._digest, text) for node in accusers]
            out += [Stopped(node, self._digest) for node in accusers[:1]]
            stop = self.stop_message()
            out.extend(Send(other, stop) for other in self._roster.needy())
