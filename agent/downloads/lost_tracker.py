"""Keeps pulls going when the tracker was lost before it knew of the swarm, without a storm on the origin.

A swarm that the tracker knew keeps its member list. A swarm that the tracker never knew, because it was gone
before the pull or before this agent's start, gets the last known members of the whole cluster. Its scheduler
then looks for the owner of each run among them, passes over members that don't answer or don't take part, and
reads the runs that fall to this node. If no other member can be reached, these are all runs.

Those that were known last may be few of those that there are. So nothing is read before a lease would have ended. Where
one of several trackers told of all nodes, shortly before it was lost, they are all, and a pull begins at once.
"""

import asyncio

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.core.protocol import messages as m
from p2pcache.ids import NodeId
from p2pcache.io import pools
from p2pcache.io.notes.known_members import KnownMembers

LOOK_S = 0.1  # between two looks: a pull that begins without a tracker waits for one
MOST_DIALLED = 24  # at the beginning of such a pull: as many as a tracker names as neighbours
SAVE_S = 30.0  # between two writes of the member list: a slightly old one serves as well
FILE = "members.json"


class LostTracker:
    """Keeps the last known members of the cluster, and gives them to swarms that the tracker doesn't know."""

    def __init__(
        self, context: AgentContext, downloads: DownloadManager, book: KnownMembers
    ) -> None:
        self._context = context
        self._downloads = downloads
        self._book = book
        self._everybody: dict[NodeId, m.Member] = {}  # as the tracker told last; empty: it didn't
        self._away = asyncio.Event()  # the tracker isn't there
        self._away.set()

    def start(self) -> None:
        """Begin to look and to save."""
        if self._context.link is not None:
            _ = self._context.tasks.spawn(self._watch(), name="stranded")
        self._context.tasks.every(SAVE_S, self._save, name="member-book")

    def tracker_up(self) -> None:
        """A connection begins. If this tracker has a list, it comes next; the one before isn't complete any more."""
        self._everybody = {}
        self._away.clear()

    def tracker_down(self) -> None:
        """The connection is lost."""
        self._away.set()

    def on_message(self, message: m.ToAgent) -> None:
        """A message of the tracker came; keep the addresses of members in it."""
        link = self._context.link
        # The only tracker may be there for all others: a node that is cut off from it isn't to begin at once.
        several = link is not None and link.fenced
        if isinstance(message, m.Swarm) and message.digest == m.EVERYBODY:
            if message.full or not several:
                self._everybody = {}
            if several:
                self._everybody |= {member.node: member for member in message.joined}
            for node in message.left:
                self._everybody.pop(node, None)
        if isinstance(message, m.Swarm) and message.joined:
            self._book.remember(
                member for member in message.joined if member.node != self._context.node
            )

    def close(self) -> None:
        """Write the list if it has changed. It blocks."""
        self._remember_callers()
        page = self._book.page()
        if page is not None:
            self._book.write(page)

    def _remember_callers(self) -> None:
        # The tracker tells a complete node of no newcomer, but newcomers dial it.
        for swarm in list(self._downloads.swarms.values()):
            callers = swarm.neighbours.callers
            for node, address in callers.items():
                self._book.add_caller(m.Member(node, address))
            callers.clear()

    async def _save(self) -> None:
        self._remember_callers()
        page = self._book.page()
        if page is not None:
            await pools.STEPS.run(self._book.write, page)

    async def _watch(self) -> None:
        # While the tracker is there nothing wakes the loop for this. It was half of what an idle agent did
        # (docs/lab/0128).
        while True:
            await self._away.wait()
            self._look()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        link = self._context.link
        if link is None or link.connected or link.refusal is not None or not link.tried.is_set():
            return
        stranded = [
            swarm for swarm in self._downloads.swarms.values()
            if swarm.wants() and not swarm.neighbours.members
        ]  # fmt: skip
        if not stranded:
            return
        self._remember_callers()
        listed = self._everybody or self._book.members
        known = tuple((listed | {self._context.node: m.Member(self._context.node, "")}).values())
        others = [node for node in listed if node != self._context.node]
        at_once = tuple(self._context.rng.sample(others, min(MOST_DIALLED, len(others))))
        for swarm in stranded:
            said = m.Swarm(swarm.digest, 0, full=True, joined=known, neighbours=at_once)
            swarm.tracker_said(said)
            if self._everybody:
                swarm.tracker_down(unheard=True)
