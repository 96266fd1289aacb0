"""Keeps pulls going when the tracker was lost before it knew of the swarm, without a storm on the origin.

A swarm that the tracker knew keeps its member list. A swarm that the tracker never knew, because it was gone
before the pull or before this agent's start, gets the last known members of the whole cluster. Its scheduler
then looks for the owner of each run among them, passes over members that don't answer or don't take part, and
reads the runs that fall to this node. If no other member can be reached, these are all runs.
"""

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.core.protocol import messages as m
from p2pcache.io import pools
from p2pcache.io.notes.known_members import KnownMembers

LOOK_S = 2.0  # between two looks; without a tracker no run is read before a lease would have ended
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

    def start(self) -> None:
        """Begin to look and to save."""
        self._context.tasks.every(LOOK_S, self._look, name="stranded")
        self._context.tasks.every(SAVE_S, self._save, name="member-book")

    def on_message(self, message: m.ToAgent) -> None:
        """A message of the tracker came; keep the addresses of members in it."""
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

    async def _look(self) -> None:
        link = self._context.link
        if link is None or link.connected or not link.tried.is_set():
            return
        self._remember_callers()
        own_entry = m.Member(self._context.node, "")
        known = (*self._book.members.values(), own_entry)
        for swarm in list(self._downloads.swarms.values()):
            if swarm.wants() and not swarm.neighbours.members:
                swarm.tracker_said(m.Swarm(swarm.digest, 0, full=True, joined=known))
