"""Answers to the questions of members (`Ask`): refs, manifests, nodes, status, tags."""

import contextlib
from collections.abc import Callable

import msgspec

from p2pcache.core.format.tag_record import TagRecord
from p2pcache.core.protocol.certificate_identity import Member
from p2pcache.core.protocol.messages import (
    MANIFEST_PART_BYTES,
    MAX_MESSAGE_BYTES,
    Answer,
    Ask,
    Refusal,
)
from p2pcache.errors import OriginUnavailable, P2PCacheError, Unreachable, UsageError
from p2pcache.ids import Ref, is_digest
from p2pcache.tracker.answers import Answers
from p2pcache.tracker.catalog import Catalog
from p2pcache.tracker.node_questions import NodeQuestions
from p2pcache.tracker.pool.admission import Admission
from p2pcache.tracker.pool.crossing import Crossing
from p2pcache.tracker.pool.keeping import Keeping
from p2pcache.tracker.warming import Warming

MAX_TEXT = 2048  # a ref, a digest, or a small JSON object
MAX_REFUSAL = 500  # characters of its text


class TagPut(msgspec.Struct, forbid_unknown_fields=True):
    """The text of a "tag_put". Without `expect_generation` the tag is replaced in any case."""

    ref: str
    digest: str
    expect_generation: int | None = None


class Questions:
    """Answers questions, and counts them by kind and outcome."""

    def __init__(
        self,
        catalog: Catalog,
        answers: Answers,
        warming: Warming,
        of_nodes: NodeQuestions,
        admission: Admission,
        keeping: Keeping,
        crossing: Crossing,
    ) -> None:
        """None was asked yet."""
        self._crossing = crossing
        self.admission = admission
        self.warming = warming
        self.of_nodes = of_nodes
        self.keeping = keeping
        self.counts: dict[tuple[str, str], int] = {}
        self.may_write: Callable[[], bool] = lambda: True  # whether we alone write tags for agents
        self._catalog = catalog
        self._answers = answers

    def at_once(self, ask: Ask) -> Answer | None:
        """The answer to a frequent question, if it is known already; None: call `answer`.

        It needs no task, so it is sent a turn of the loop sooner. That counts in a storm.
        """
        found: tuple[bytes, int] | None = None
        if ask.what == "resolve" and len(ask.text) <= MAX_TEXT:
            with contextlib.suppress(UsageError):
                record = self._catalog.known_tag(Ref.parse(ask.text))
                found = _json(record) if isinstance(record, TagRecord) else None
        elif ask.what == "manifest" and not ask.offset:
            data = self._catalog.known_manifest(ask.text)
            found = _part(data, 0) if data else None
        elif ask.what == "admit" and not self.admission.quotas:
            found = b"", 0
        if found is None:
            return None
        self._count(ask.what, "ok")
        return Answer(ask.id, *found)

    async def answer(self, ask: Ask, bearer: Member | None) -> Answer | Refusal:
        """The answer to a question; an error becomes a refusal.

        Args:
            ask: the question.
            bearer: the member that the asker's certificate names; None where members show none.
        """
        kind = ask.what if ask.what in _KINDS else "unknown"
        try:
            data, total = await self._data(ask, bearer)
            if len(data) > MAX_MESSAGE_BYTES - 1024:
                raise UsageError(
                    f"the answer is too large; ask the tracker's HTTP API (/v1/{kind})"
                )
        except P2PCacheError as error:
            self._count(kind, str(error.exit_code))
            return Refusal(ask.id, error.exit_code, str(error)[:MAX_REFUSAL])
        self._count(kind, "ok")
        return Answer(ask.id, data, total)

    async def _data(self, ask: Ask, bearer: Member | None) -> tuple[bytes, int]:
        if len(ask.text) > MAX_TEXT:
            raise UsageError("the question is too long")
        match ask.what:
            case "resolve":
                return _json(await self._catalog.tag(Ref.parse(ask.text)))
            case "manifest" | "spelling" | "signatures":
                return await self._from_origin(ask)
            case "nodes" | "status" | "swarms" | "locate":
                return _whole(await self._made(ask))
            case "warm":
                return _json(await self.warming.warm(ask.text))
            case "pulls" | "history" | "room":
                return _json(await self.of_nodes.ask_nodes(ask.what, ask.text))
            case "admit":
                self.admission.admit(ask.text)
                return b"", 0
            case "keeps" | "keep" | "drain" | "crossing":
                return _json(await self._of_pool(ask, bearer))
            case "moved":
                self._catalog.moved(Ref.parse(ask.text))
                return b"", 0
            case "tag_put":
                if bearer is not None:
                    bearer.need_pusher()
                return _json(await self._put_tag(ask.text))
            case _:
                raise UsageError(f"this tracker doesn't know the question {ask.what[:40]!a}")

    async def _of_pool(self, ask: Ask, bearer: Member | None) -> dict[str, object]:
        if ask.what == "crossing":
            return self._crossing.turn(ask.text)
        if ask.what == "keeps":
            return await self.keeping.rows()
        if bearer is not None:
            bearer.need_pusher()
        if ask.what == "keep":
            return await self.keeping.keep(ask.text)
        return await self.keeping.drain_node(ask.text)

    async def _manifest(self, digest: str) -> bytes:
        """From the origin; while it doesn't answer, from a node that has the model."""
        away = self._catalog.trouble is not None and self._catalog.known_manifest(digest) is None
        if away and (found := await self.of_nodes.ask_manifest(digest)):
            self._catalog.learn_manifest(digest, found)
            return found
        try:
            return await self._catalog.manifest(digest)
        except (Unreachable, OriginUnavailable):
            if not (found := await self.of_nodes.ask_manifest(digest)):
                raise
            self._catalog.learn_manifest(digest, found)
            return found

    async def _made(self, ask: Ask) -> bytes:
        """An answer about the tracker's state, as people get it over HTTP; nodes add why they have a model."""
        if ask.what == "nodes":
            return (await self._answers.nodes()).body
        if ask.what == "status":
            return (await self._answers.status()).body
        if ask.what == "swarms":
            return (await self._answers.swarms()).body
        located = await self._answers.locate(Ref.parse(ask.text))
        return await self.of_nodes.ask_holders(located.body)

    async def _from_origin(self, ask: Ask) -> tuple[bytes, int]:
        """What storage has beside tags."""
        if ask.what == "manifest":
            return _part(await self._manifest(ask.text), ask.offset)
        if ask.what == "spelling":
            return _whole((await self._catalog.spelling(Ref.parse(ask.text))).encode())
        return _part(await self._catalog.stored_signatures(ask.text), ask.offset)

    async def _put_tag(self, text: str) -> object:
        try:
            wish = msgspec.json.decode(text, type=TagPut)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(f"not a tag_put: {error}") from None
        if not is_digest(wish.digest):
            raise UsageError("not a manifest digest")
        if not self.may_write():
            raise Unreachable("this tracker may not be the active one any more; try again")
        return await self._catalog.put_tag(Ref.parse(wish.ref), wish.digest, wish.expect_generation)

    def _count(self, kind: str, outcome: str) -> None:
        self.counts[kind, outcome] = self.counts.get((kind, outcome), 0) + 1


_KINDS = ("resolve", "manifest", "nodes", "status", "locate", "warm", "pulls", "history", "room", "swarms",
          "admit", "crossing", "moved", "tag_put", "keep", "keeps", "drain", "spelling", "signatures")  # fmt: skip


def _json(body: object) -> tuple[bytes, int]:
    return _whole(msgspec.json.encode(body))


def _whole(data: bytes) -> tuple[bytes, int]:
    return data, len(data)


def _part(data: bytes, offset: int) -> tuple[bytes, int]:
    if not data and not offset:
        return data, 0
    if not 0 <= offset < len(data):
        raise UsageError(f"offset {offset} in an answer of {len(data)} bytes")
    return data[offset : offset + MANIFEST_PART_BYTES], len(data)
