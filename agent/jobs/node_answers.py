"""Answers to the tracker's questions: what runs here, what ended here, how full it is; will it fetch a model?"""

import time
from collections.abc import Awaitable, Callable

import msgspec

from p2pcache.agent.context import AgentContext
from p2pcache.agent.journal import Journal
from p2pcache.core.protocol import messages as m
from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.ids import is_digest
from p2pcache.io import pools
from p2pcache.io.models.room import standing

MAX_ROWS = 100

Rows = list[dict[str, object]]


class NodeAnswers:
    """Answers each `NodeQuestion` once."""

    def __init__(
        self, context: AgentContext, pulls: Callable[[], Rows], journal: Journal,
        room: Callable[[], Awaitable[dict[str, object]]], warm: Callable[[str], Awaitable[str]],
    ) -> None:  # fmt: skip
        """Nothing was asked yet.

        Args:
            context: of the agent.
            pulls: gives the pulls that run now, as rows of the API.
            journal: what ended.
            room: says how full the cache is, as the API does.
            warm: begins to fetch a model, and says how it stands here.
        """
        self._room = room
        self._warm = warm
        self._context = context
        self._pulls = pulls
        self._journal = journal

    def on_question(self, asked: m.NodeQuestion) -> None:
        """The tracker asks."""
        self._context.tasks.spawn_contained(self._answer(asked), name=f"answer-{asked.id}")

    async def _answer(self, asked: m.NodeQuestion) -> None:
        link = self._context.link
        assert link is not None
        try:
            said = m.NodeAnswer(asked.id, await self._data(asked))
        except P2PCacheError as error:
            said = m.NodeAnswer(asked.id, code=error.exit_code, message=str(error)[:500])
        link.send(said)

    async def _data(self, asked: m.NodeQuestion) -> bytes:
        limit = min(asked.limit, MAX_ROWS)
        match asked.what:
            case "manifest":
                return await self._manifest(asked.text, asked.limit)
            case "warm":
                return (await self._warm(asked.text)).encode()
            case "pulls":
                rows = self._pulls()[:limit]
            case "history":
                rows = [row.as_json() for row in await self._journal.rows(limit)]
            case "room":
                rows = [await self._room()]
            case "model":
                rows = await pools.STEPS.run(standing, self._context.store, asked.text, time.time())
            case _:  # a newer tracker
                raise UsageError(f"this agent doesn't know the question {asked.what[:40]!a}")
        return msgspec.json.encode(rows)

    async def _manifest(self, digest: str, begin: int) -> bytes:
        """A part of a manifest; nothing of one that isn't here."""
        encoded = (
            await pools.STEPS.run(self._context.store.manifest, digest)
            if is_digest(digest)
            else None
        )
        begin = max(0, begin)
        return (encoded or b"")[begin : begin + m.NODE_MANIFEST_BYTES]
