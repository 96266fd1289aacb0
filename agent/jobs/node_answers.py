"""Answers to the tracker's questions about this node: what runs here, what ended here, how full it is."""

import time
from collections.abc import Awaitable, Callable

import msgspec

from p2pcache.agent.context import AgentContext
from p2pcache.agent.journal import Journal
from p2pcache.core.protocol import messages as m
from p2pcache.errors import UsageError
from p2pcache.ids import is_digest
from p2pcache.io import pools
from p2pcache.io.models.room import standing

MAX_ROWS = 100

Rows = list[dict[str, object]]


class NodeAnswers:
    """Answers each `NodeQuestion` once."""

    def __init__(
        self, context: AgentContext, pulls: Callable[[], Rows], journal: Journal,
        room: Callable[[], Awaitable[dict[str, object]]],
    ) -> None:  # fmt: skip
        """Nothing was asked yet.

        Args:
            context: of the agent.
            pulls: gives the pulls that run now, as rows of the API.
            journal: what ended.
            room: says how full the cache is, as the API does.
        """
        self._room = room
        self._context = context
        self._pulls = pulls
        self._journal = journal

    def on_question(self, asked: m.NodeQuestion) -> None:
        """The tracker asks."""
        self._context.tasks.spawn_contained(self._answer(asked), name=f"answer-{asked.id}")

    async def _answer(self, asked: m.NodeQuestion) -> None:
        link = self._context.link
        assert link is not None
        if asked.what == "manifest":
            link.send(m.NodeAnswer(asked.id, await self._manifest(asked.text, asked.limit)))
            return
        limit = min(asked.limit, MAX_ROWS)
        if asked.what == "pulls":
            rows = self._pulls()[:limit]
        elif asked.what == "history":
            rows = [row.as_json() for row in await self._journal.rows(limit)]
        elif asked.what == "room":
            rows = [await self._room()]
        elif asked.what == "model":
            rows = await pools.STEPS.run(standing, self._context.store, asked.text, time.time())
        else:  # a newer tracker
            unknown = f"this agent doesn't know the question {asked.what[:40]!a}"
            link.send(m.NodeAnswer(asked.id, code=UsageError.exit_code, message=unknown))
            return
        link.send(m.NodeAnswer(asked.id, msgspec.json.encode(rows)))

    async def _manifest(self, digest: str, begin: int) -> bytes:
        """A part of a manifest; nothing of one that isn't here."""
        encoded = (
            await pools.STEPS.run(self._context.store.manifest, digest)
            if is_digest(digest)
            else None
        )
        begin = max(0, begin)
        return (encoded or b"")[begin : begin + m.NODE_MANIFEST_BYTES]
