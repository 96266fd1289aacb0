"""What operators ask for about the pool, as members pass it on."""

from typing import TypeVar

import msgspec

from p2pcache.core.format.keep_record import MAX_NUMBER, KeepRecord
from p2pcache.core.pool.selector import Selector
from p2pcache.core.pool.settings import MAX_COPIES
from p2pcache.errors import UsageError
from p2pcache.ids import Ref

T = TypeVar("T")


class KeepRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The text of a "keep"."""

    ref: str
    copies: int = 0
    whole: bool = False
    everywhere: bool = False
    nodes: str = ""
    off: bool = False


class DrainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The text of a "drain". `node`: an id, or a name that one node has."""

    node: str
    undo: bool = False


def wish_text(record: KeepRecord) -> str:
    """What is wished, as a person would say it."""
    where = f" of {record.nodes}" if record.nodes else ""
    if record.everywhere:
        return f"whole on all nodes{where}"
    kind = "whole " if record.whole else ""
    return f"{kind}copies {record.copies}{where}"


def record_of(asked: KeepRequest, ref: Ref) -> KeepRecord:
    """What a request wants to be stored.

    Raises:
        UsageError: it contradicts itself.
    """
    if ref.digest:
        raise UsageError("a name is kept, whatever it means; leave the digest out")
    nodes = str(Selector.parse(asked.nodes))
    if asked.off:
        return KeepRecord()
    if asked.everywhere == bool(asked.copies):
        raise UsageError("say how many copies, or that all nodes are to have it")
    limit = MAX_NUMBER if asked.whole else MAX_COPIES
    if not 0 <= asked.copies <= limit:
        raise UsageError(f"1 to {limit} copies; for more, `--whole` or `--all`")
    return KeepRecord(0, asked.copies, asked.whole or asked.everywhere, asked.everywhere, nodes)


def parsed(text: str, kind: type[T], what: str) -> T:
    """A request.

    Raises:
        UsageError: the text is none.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"not a {what}: {error}") from None
