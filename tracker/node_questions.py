"""Asks members what runs there, what ended there, how full they are, and why they have a model."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec

from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.format.manifest import MAX_MANIFEST_BYTES, digest_of
from p2pcache.core.protocol import messages as m
from p2pcache.errors import Unreachable, UsageError
from p2pcache.ids import NodeId, format_node, parse_node
from p2pcache.io import pools
from p2pcache.io.tasks import Shared

ANSWER_S = 3.0  # a live node answers in milliseconds
MAX_NODES = 2000  # asked at once; the others are counted
MANIFEST_TRIES = 3  # members that are asked for one manifest
MAX_HOLDERS = 500  # that are asked about one model; a person reads a page of them
MAX_ROWS = 2000  # of one answer: a megabyte
MAX_NODE_ROWS = 100  # of one node
MAX_DATA = 128 << 10  # of one node's answer: its rows, with long messages

Text = Annotated[str, msgspec.Meta(max_length=500)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class PullRow(msgspec.Struct):
    """A pull that runs; docs/api.md has the meaning of the fields. Others that a node may say are left out."""

    ref: Text
    digest: Text
    bytes_done: Count
    bytes_total: Count
    rate: Count
    eta_s: Seconds | None
    peers: Count
    bytes_origin: Count
    bytes_peers: Count
    started: Seconds
    clients: Count
    kind: Text


class HistoryRow(msgspec.Struct):
    """What ended."""

    ended: Seconds
    action: Text
    ref: Text
    digest: Text
    bytes: Count
    seconds: Seconds
    rate: Count
    bytes_origin: Count
    bytes_peers: Count
    bytes_local: Count
    code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    message: Text
    times: Count


class RoomRow(msgspec.Struct):
    """How full a node's cache is."""

    capacity_bytes: Count
    limit_bytes: Count
    quota_bytes: Count
    used_bytes: Count
    free_bytes: Count
    held_bytes: Count
    evictable_bytes: Count
    models: Count
    kept_bytes: Count = 0  # an older release doesn't say it


class ModelRow(msgspec.Struct):
    """Why a node has a model."""

    kept: Text  # "whole" or "part": the cluster keeps it, or a part of it, there
    pinned: bool
    held: bool
    last_used: Seconds


Row = PullRow | HistoryRow | RoomRow | ModelRow
KINDS: dict[str, type[Row]] = {
    "pulls": PullRow,
    "history": HistoryRow,
    "room": RoomRow,
    "model": ModelRow,
}


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

    async def ask_holders(self, located: bytes) -> bytes:
        """The answer to "locate" with what its first nodes say themselves: `kept`, `pinned`, `held`, `last_used`.

        Nodes of an older release, and those that are silent, say nothing.
        """
        found = msgspec.json.decode(located)
        rows = {parse_node(row["node"]): row for row in found["nodes"]}
        members = self._tracking.registry.nodes
        asked = [n for n in rows if n in members and members[n].connected and members[n].said.tells]
        chosen = asked[:MAX_HOLDERS]
        answers = await asyncio.gather(
            *(self.ask_node(node, "model", 1, found["digest"], ANSWER_S) for node in chosen)
        )
        for node, answer in zip(chosen, answers, strict=True):
            for row in _rows(answer, ModelRow) or ():
                rows[node].update(msgspec.structs.asdict(row))
        return msgspec.json.encode(found)

    async def ask_manifest(self, digest: str) -> bytes | None:
        """A model's manifest, proved by its digest, from members that have some of it; None: none gives it."""
        swarm = self._tracking.swarms.get(digest)
        members = self._tracking.registry.nodes
        holders = [] if swarm is None else [
            node for node, record in swarm.roster.members.items()
            if record.delivers and members[node].connected and members[node].said.tells
        ]  # fmt: skip
        for node in holders[:MANIFEST_TRIES]:
            data = bytearray()
            while len(data) <= MAX_MANIFEST_BYTES:
                said = await self.ask_node(node, "manifest", len(data), digest, ANSWER_S)
                if said.code:
                    break
                data += said.data
                if len(said.data) < m.NODE_MANIFEST_BYTES:
                    break
            if digest_of(bytes(data)) == digest:
                return bytes(data)
        return None

    def on_told(self, node: NodeId, said: m.NodeAnswer) -> None:
        """A member answered."""
        future = self._asked.get((node, said.id))
        if future is not None and not future.done():
            future.set_result(said)

    async def _ask_nodes(self, what: str, limit: int) -> dict[str, object]:
        members = self._tracking.registry.nodes
        able = [
            n for n, record in sorted(members.items()) if record.connected and record.said.tells
        ]
        older = sum(record.connected and not record.said.tells for record in members.values())
        chosen = able[:MAX_NODES]
        names = {node: members[node].said.name for node in chosen}
        answers = await asyncio.gather(
            *(self.ask_node(node, what, limit, "", ANSWER_S) for node in chosen)
        )
        said = dict(zip(chosen, answers, strict=True))
        rows, odd = await pools.WORK.run(_gathered, said, names, KINDS[what], limit)
        return {what: rows, "silent": len(able) - len(chosen) + odd, "older": older}

    async def ask_node(
        self, node: NodeId, what: str, limit: int, text: str, limit_s: float
    ) -> m.NodeAnswer:
        """Ask one member. One that says nothing within `limit_s` has refused; the others are `NodeQuestion`'s."""
        self._number += 1
        number = self._number
        future: asyncio.Future[m.NodeAnswer] = asyncio.get_running_loop().create_future()
        self._asked[node, number] = future
        try:
            if not self.send_to(node, m.NodeQuestion(number, what, limit, text)):
                return m.NodeAnswer(number, code=Unreachable.exit_code, message="it has just left")
            async with asyncio.timeout(limit_s):
                return await future
        except TimeoutError:
            late = f"no answer within {limit_s:.0f} s; it may do it all the same"
            return m.NodeAnswer(number, code=Unreachable.exit_code, message=late)
        finally:
            del self._asked[node, number]


def _gathered(
    said: Mapping[NodeId, m.NodeAnswer],
    names: Mapping[NodeId, str],
    kind: type[Row],
    limit: int,
) -> tuple[list[dict[str, object]], int]:
    """All rows with their nodes, the newest first, and how many nodes said nothing that makes sense."""
    found: list[tuple[float, dict[str, object]]] = []
    odd = 0
    for node, answer in said.items():
        rows = _rows(answer, kind)
        odd += rows is None
        named: dict[str, object] = {"node": format_node(node), "name": names[node]}
        found += [(_time(row), named | msgspec.structs.asdict(row)) for row in (rows or [])[:limit]]
    found.sort(key=lambda pair: pair[0], reverse=True)
    return [row for _, row in found[:MAX_ROWS]], odd


def _rows(said: m.NodeAnswer, kind: type[Row]) -> list[Row] | None:
    """The rows of an answer; None: there is none, or it makes no sense."""
    if said.code or len(said.data) > MAX_DATA:
        return None
    try:
        rows: list[Row] = msgspec.json.decode(said.data, type=list[kind])  # type: ignore[valid-type]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return rows


def _time(row: Row) -> float:
    if isinstance(row, RoomRow | ModelRow):
        return 0.0
    return row.started if isinstance(row, PullRow) else row.ended
