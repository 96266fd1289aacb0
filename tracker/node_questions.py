"""Answers the questions "pulls" and "history": asks every member what runs there, or what ended there."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.protocol import messages as m
from p2pcache.errors import UsageError
from p2pcache.ids import NodeId, format_node
from p2pcache.io.tasks import Shared

ANSWER_S = 3.0  # a live node answers in milliseconds
MAX_NODES = 2000  # asked at once; the others are counted
MAX_ROWS = 2000  # of one answer: a megabyte
MAX_NODE_ROWS = 100  # of one node
KINDS = {
    "pulls": "started",
    "history": "ended",
}  # and by what the rows are sorted, the newest first


class NodeQuestions:
    """Asks members, and gathers what they say in time."""

    def __init__(self, tracking: TrackerState) -> None:
        self.send_to: Callable[[int, m.ToAgent], bool] = lambda _node, _message: False
        """Sends a member a message; False: it isn't connected."""
        self._tracking = tracking
        self._asked: dict[tuple[NodeId, int], asyncio.Future[m.NodeAnswer]] = {}
        self._number = 0
        self._asking = Shared[dict[str, object]]()  # the same question at once is asked once

    async def ask_nodes(self, what: str, text: str) -> dict[str, object]:
        """All rows with their nodes, the newest first; how many nodes were silent, or are of an older release.

        Args:
            what: a key of `KINDS`.
            text: how many rows of each node at most; "" for all that it may tell.

        Raises:
            UsageError: the text is no number.
        """
        if text and not (text.isascii() and text.isdigit() and len(text) < 7):
            raise UsageError("the text of this question is a number of rows")
        limit = min(int(text or MAX_NODE_ROWS), MAX_NODE_ROWS)
        return await self._asking.share(f"{what} {limit}", lambda: self._ask_nodes(what, limit))

    def on_told(self, node: NodeId, said: m.NodeAnswer) -> None:
        """A member answered."""
        future = self._asked.get((node, said.id))
        if future is not None and not future.done():
            future.set_result(said)

    async def _ask_nodes(self, what: str, limit: int) -> dict[str, object]:
        members = self._tracking.registry.nodes
        able = [
            node for node, record in sorted(members.items()) if record.connected and record.tells
        ]
        chosen = able[:MAX_NODES]
        answers = await asyncio.gather(*(self._ask_node(node, what, limit) for node in chosen))
        rows: list[dict[str, Any]] = []
        silent = len(able) - len(chosen)
        for node, said in zip(chosen, answers, strict=True):
            found = _rows(said)
            silent += found is None
            name = members[node].name if node in members else ""
            rows += [
                {"node": format_node(node), "name": name, **row} for row in (found or [])[:limit]
            ]
        rows.sort(key=lambda row: _time(row, KINDS[what]), reverse=True)
        older = sum(record.connected and not record.tells for record in members.values())
        return {what: rows[:MAX_ROWS], "silent": silent, "older": older}

    async def _ask_node(self, node: NodeId, what: str, limit: int) -> m.NodeAnswer | None:
        self._number += 1
        number = self._number
        future: asyncio.Future[m.NodeAnswer] = asyncio.get_running_loop().create_future()
        self._asked[node, number] = future
        try:
            if not self.send_to(node, m.NodeQuestion(number, what, limit)):
                return None
            async with asyncio.timeout(ANSWER_S):
                return await future
        except TimeoutError:
            return None
        finally:
            del self._asked[node, number]


def _rows(said: m.NodeAnswer | None) -> list[dict[str, Any]] | None:
    """The rows of an answer; None: there is none, or it makes no sense."""
    if said is None or said.code:
        return None
    try:
        return msgspec.json.decode(said.data, type=list[dict[str, Any]])
    except (msgspec.MsgspecError, RecursionError):
        return None


def _time(row: dict[str, Any], key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
