"""Callers of the API and their rights, and which rows of an answer a caller may see.

`agent.api.routes` says what each call needs. `agent.api.gate` finds out who calls and checks it. A handler
whose route says "model" asks `Caller.need` for the namespace as soon as it knows the ref.
"""

from dataclasses import dataclass
from typing import Literal

from p2pcache.core.protocol.tokens import EVERY, Rights, Scope
from p2pcache.errors import NotAllowed
from p2pcache.ids import Ref

ListenerKind = Literal["operator", "client", "api", "health", "door"]
"""The listener that a call came through: the two unix sockets, the API on TCP, health on TCP, a door on loopback."""


class Denied(NotAllowed):
    """A caller asked for more than its rights allow. It is always in the audit log."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of one call, with its rights."""

    who: str  # for the audit log: "uid=1000 pid=77", "token=ci id=3f.. ip=10.0.0.7"
    client: str  # rates and places are counted for it: the user or the token, not the process
    rights: Rights | None  # None: no rights at all
    listener: ListenerKind

    def need(self, scope: Scope, namespace: str, call: str) -> None:
        """Check that this caller has a right.

        Args:
            scope: the right.
            namespace: where it must hold; "": in any namespace; `EVERY`: in all of them.
            call: the method and path, for the message.

        Raises:
            Denied: it hasn't; the text says how to get the right.
        """
        if self.rights is not None and self.rights.allow(scope, namespace):
            return
        raise Denied(self._refusal(scope, namespace, call))

    def sees(self, namespace: str) -> bool:
        """Whether models of a namespace may be shown."""
        return self.rights is not None and self.rights.allow(Scope.PULL, namespace)

    def sees_some(self, refs: list[Ref]) -> bool:
        """Whether a model with these names may be shown. Callers with all namespaces also see unnamed models."""
        return any(self.sees(ref.namespace) for ref in refs) if refs else self.everywhere

    @property
    def everywhere(self) -> bool:
        """Whether models of every namespace may be shown."""
        return self.rights is not None and self.rights.everywhere

    def _refusal(self, scope: Scope, namespace: str, call: str) -> str:
        place = {"": "", EVERY: " in every namespace"}.get(namespace, f" in namespace {namespace}")
        if self.listener == "client" and scope is not Scope.PULL:
            return f"this socket is for pulling only; use the operators' socket for {call}"
        if self.rights is None and self.listener == "operator":
            return (
                f"not an operator of this agent ({self.who}): be root or a member of the socket's "
                f"group, or give a token (--token-file) that allows {scope}{place}"
            )
        if self.rights is None:
            return f"{call} needs a token that allows {scope}{place}: give one with --token-file"
        held = ", ".join(self.rights.namespaces) or "no namespace"
        return f"{call} needs the right to {scope}{place}; you have {self.rights.scope} in {held}"


def seen_model(caller: Caller, row: dict[str, object]) -> dict[str, object]:
    """A model's record without names of namespaces that the caller may not see; {} when no name is left."""
    refs = row.get("refs")
    if caller.everywhere or not isinstance(refs, list):
        return row
    seen = [ref for text in refs if caller.sees((ref := Ref.parse(text)).namespace)]
    if not seen:
        return {}
    first, names, told = seen[0], {ref.full_name for ref in seen}, row.get("spellings")
    spellings = told.items() if isinstance(told, dict) else ()
    return row | {
        "ref": str(first), "namespace": first.namespace, "name": first.name,
        "tags": [ref.tag for ref in seen], "refs": [ref.short for ref in seen],
        "spellings": {name: text for name, text in spellings if name in names},
    }  # fmt: skip


def seen_pulls(caller: Caller, rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The pulls that a caller may see, each by a name that it may see.

    A row has one name (`ref`), or several (`refs`, which aren't shown). Only callers with all namespaces see rows that
    name no model.
    """
    found: list[dict[str, object]] = []
    for row in rows:
        shown = dict(row)
        several = shown.pop("refs", None)
        names = [str(one) for one in several] if isinstance(several, list) else [str(row["ref"])]
        seen = [name for name in names if _sees_name(caller, name)]
        if seen:
            found.append(shown | {"ref": seen[0]})
    return found


def _sees_name(caller: Caller, name: str) -> bool:
    return caller.sees(Ref.parse(name).namespace) if name else caller.everywhere
