"""A tracker that can't be reached must stop no pull, and a thousand such pulls be no origin storm.

A swarm that the tracker was told of has its member list. One that it never heard of (the tracker
was gone before the pull, or before this agent's start) is given the last known members of the whole
cluster instead: the scheduler then looks for each run's owner among them, passes over those that
don't answer or don't take part, and reads by itself what falls to it. If nobody else can be
reached, that is everything.
"""

import asyncio

from p2pcache.agent.context import Parts
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.core.protocol import messages as m
from p2pcache.io.notes.known_members import MemberBook

LOOK_S = 2.0  # nothing is read without a tracker before a lease's life is over anyway
SAVE_S = 30.0  # a list that is half a minute old does as well
FILE = "members.json"


class LostTracker:
    """Keeps the last known members, and hands them to swarms that the tracker knows nothing of."""

    def __init__(self, parts: Parts, downloads: DownloadManager, book: MemberBook) -> None:
        self._parts = parts
        self._downloads = downloads
        self._book = book

    def start(self) -> None:
        """Begin the chores."""
        self._parts.tasks.every(LOOK_S, self._look, name="stranded")
        self._parts.tasks.every(SAVE_S, self._save, name="member-book")

    def on_message(self, message: m.ToAgent) -> None:
        """The tracker said something; its members' addresses are worth keeping."""
        if isinstance(message, m.Swarm) and message.joined:
            self._book.note(member for member in message.joined if member.node != self._parts.node)

    def close(self) -> None:
        """Write what is news (blocks)."""
        self._remember_callers()
        page = self._book.page()
        if page is not None:
            self._book.write(page)

    def _remember_callers(self) -> None:
        # A node that is complete is told of nobody who comes after it; but they come to it.
        for swarm in list(self._downloads.swarms.values()):
            callers = swarm.neighbours.callers
            self._book.note(m.Member(node, address) for node, address in callers.items())
            callers.clear()

    async def _save(self) -> None:
        self._remember_callers()
        page = self._book.page()
        if page is not None:
            await asyncio.to_thread(self._book.write, page)

    async def _look(self) -> None:
        link = self._parts.link
        if link is None or link.connected or not link.tried.is_set():
            return
        self._remember_callers()
        ourselves = m.Member(self._parts.node, "")
        known = (*self._book.members.values(), ourselves)
        for swarm in list(self._downloads.swarms.values()):
            if swarm.wants() and not swarm.neighbours.members:
                swarm.tracker_said(m.Swarm(swarm.digest, 0, full=True, joined=known))
