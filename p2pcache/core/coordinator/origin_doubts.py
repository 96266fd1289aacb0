"""What the tracker does when a member reads wrong bytes from the origin: asks, judges, tells. Pure."""

from p2pcache.core import bitset
from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.origin_integrity import OddReason, WitnessReport
from p2pcache.core.membership.outputs import Output, ReadRun, Send, StorageNotice
from p2pcache.core.membership.roster import Roster
from p2pcache.core.protocol import messages as m

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
    """One swarm's."""

    def __init__(self, roster: Roster, book: LeaseBook) -> None:
        """Nobody doubts; the swarm's roster and leases."""
        self._digest = roster.digest
        self._roster = roster
        self._book = book
        self._wrong = book.wrong
        self._named: set[int] = set()  # who read wrong, and people were told; until its pull ends

    def mismatched(self, node: int, runs: int, now: float, out: list[Output]) -> None:
        """A member read these runs (bits) wrong; only of its own leases does its word count."""
        for run in self._book.mismatched(node, runs, now):
            fresh = self._wrong.said(node, run, now)
            if node not in self._named:
                self._named.add(node)
                text = f"it says that storage has run {run} of the model not at all, or wrong"
                out.append(StorageNotice(node, self._digest, text))
            if fresh:
                out.append(ReadRun(node, self._digest, run))
            self._judge(run, now, out)

    def claimed(self, node: int, runs: int, now: float, out: list[Output]) -> None:
        """A member has runs (bits) that it hadn't; told before the leases hear of it."""
        for run in bitset.members(runs & self._wrong.doubted & self._book.leased):
            if self._book.leases[run].node == node:
                self._wrong.read_right(node, run)
                self._judge(run, now, out)

    def heard(
        self, node: int, run: int, word: WitnessReport, now: float, out: list[Output]
    ) -> None:
        """The tracker has read a run itself, because of this node."""
        self._wrong.heard(run, word)
        if node not in self._wrong.odd:
            out.append(StorageNotice(node, self._digest, _FOUND[word].format(run=run)))
        self._judge(run, now, out)

    def credit(self, node: int, credit: int, wanted: int) -> int:
        """How many leases a node works on, who says so many; who is odd gets none until its pull is over."""
        if credit <= 0:
            self.over(node)
        odd = self._wrong.odd.get(node)
        if odd is None:
            return credit
        odd.wanted = wanted
        return 0

    def over(self, node: int) -> None:
        """Its pull is over, or it is another process: it may try again."""
        self._wrong.pardon(node)
        self._named.discard(node)

    def step(self, out: list[Output]) -> None:
        """Tell those that nobody brings what they lack, and that can't read it themselves."""
        if not self._wrong.odd or len(self._book.readers):
            return
        for node in self._wrong.hopeless(self._book.free):
            odd = self._wrong.odd[node]
            reason = _ODD[odd.why].format(run=odd.run)
            out.append(Send(node, m.Stop(self._digest, odd.run, reason, odd.why)))

    def stop(self) -> m.Stop:
        """What everybody is told of a model whose bytes are wrong."""
        run = self._book.stopped if self._book.stopped is not None else -1
        reason = f"run {run} is gone there, or doesn't match the manifest"
        return m.Stop(self._digest, run, reason)

    def _judge(self, run: int, now: float, out: list[Output]) -> None:
        before = self._book.stopped
        for node in self._wrong.judge(run, self._book.readers, now):
            if not self._book.readers.credit(node):
                self.over(node)
                continue
            self._wrong.odd[node].wanted = self._book.readers.wanted(node)
            self._book.want(node, 0)
            text = f"it gets no leases for this pull: {_ODD[self._wrong.odd[node].why].format(run=run)}"
            out.append(StorageNotice(node, self._digest, text))
        if self._book.stopped is not None and before is None:
            text = f"by its word, too, run {run} is wrong in storage: nobody gets leases"
            out += [StorageNotice(node, self._digest, text) for node in self._wrong.accusers(run)]
            stop = self.stop()
            out.extend(Send(other, stop) for other in self._roster.needy())
