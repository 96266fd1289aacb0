"""Who may call what: the one table of routes and rights, and the caller whom it is applied to.

`agent.api.gate` finds out who calls and applies the table; a handler whose route says "model" asks
`Caller.need` for the namespace as soon as it knows it.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from p2pcache.core.protocol.tokens import EVERY, Rights, Scope
from p2pcache.errors import NotAllowed
from p2pcache.ids import Ref

Door = Literal["operator", "client", "api", "health"]
"""Which listener somebody came through: the two unix sockets, the API on TCP, health on TCP."""

Slots = Literal["", "pull", "offer", "blob", "work"]
"""What is counted while it runs; "": over at once."""


class Denied(NotAllowed):
    """Somebody asked for more than they may. Always in the audit log."""


class Rule(NamedTuple):
    """What a route needs."""

    scope: Scope | None  # None: nothing, whoever reaches the listener may ask
    where: Literal[
        "model", "seen", "node"
    ]  # the ref's namespace; shows what one may see; every one
    slots: Slots = ""
    cheap: bool = False  # many a second are usual


RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/healthz"): Rule(None, "seen", cheap=True),
    ("GET", "/readyz"): Rule(None, "seen", cheap=True),
    ("GET", "/metrics"): Rule(None, "seen", cheap=True),
    ("GET", "/openapi.json"): Rule(None, "seen", cheap=True),
    ("POST", "/v1/pull"): Rule(Scope.PULL, "model", "pull"),
    ("POST", "/v1/load"): Rule(Scope.PULL, "model", "pull"),
    ("POST", "/v1/demand"): Rule(Scope.PULL, "seen", cheap=True),  # of a load of its own
    ("GET", "/v1/models"): Rule(Scope.PULL, "seen"),
    ("GET", "/v1/model"): Rule(Scope.PULL, "model"),
    ("GET", "/v1/locate"): Rule(Scope.PULL, "model"),
    ("GET", "/v1/explain"): Rule(Scope.PULL, "model"),
    ("GET", "/v1/pulls"): Rule(Scope.PULL, "seen"),
    ("GET", "/v1/status"): Rule(Scope.PULL, "seen"),
    ("GET", "/v1/history"): Rule(Scope.PULL, "seen"),
    ("POST", "/v1/manifests"): Rule(Scope.PUSH, "seen", "offer"),
    ("PUT", "/v1/blobs/{manifest}/{blob}"): Rule(Scope.PUSH, "seen", "blob", cheap=True),
    ("POST", "/v1/push"): Rule(Scope.PUSH, "model", "work"),
    ("DELETE", "/v1/model"): Rule(Scope.ADMIN, "model", "work"),
    ("POST", "/v1/verify"): Rule(Scope.ADMIN, "model", "work"),
    ("POST", "/v1/prune"): Rule(Scope.ADMIN, "node", "work"),
    ("POST", "/v1/warm"): Rule(Scope.ADMIN, "model"),
    ("POST", "/v1/linger"): Rule(Scope.ADMIN, "node", "work"),
    ("POST", "/v1/pressure"): Rule(Scope.ADMIN, "node", cheap=True),
    ("GET", "/v1/nodes"): Rule(Scope.ADMIN, "node"),
}
# A route that nobody thought of here is for operators of the whole node only.
UNLISTED = Rule(Scope.ADMIN, "node", "work")


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who calls: for the audit log, for the rates, and for the rules."""

    who: str  # "uid=1000 pid=77", "token=ci id=3f.. ip=10.0.0.7"
    client: str  # whom rates and slots are counted for: the user or the token, not the process
    rights: Rights | None  # None: no rights at all
    door: Door

    def need(self, scope: Scope, namespace: str, call: str) -> None:
        """Go on, or be refused.

        Args:
            scope: what is needed.
            namespace: where; "" somewhere, `EVERY` for what concerns the whole node.
            call: what was asked, for the message.

        Raises:
            Denied: says what would be needed, and how to get it.
        """
        if self.rights is not None and self.rights.allow(scope, namespace):
            return
        raise Denied(self._refusal(scope, namespace, call))

    def sees(self, namespace: str) -> bool:
        """Whether what lies in a namespace may be shown."""
        return self.rights is not None and self.rights.allow(Scope.PULL, namespace)

    def sees_some(self, refs: list[Ref]) -> bool:
        """Whether a model with these names may be shown; one without names, to whom sees all."""
        return any(self.sees(ref.namespace) for ref in refs) if refs else self.everywhere

    @property
    def everywhere(self) -> bool:
        """Whether every namespace may be looked at."""
        return self.rights is not None and self.rights.everywhere

    def _refusal(self, scope: Scope, namespace: str, call: str) -> str:
        place = {"": "", EVERY: " in every namespace"}.get(namespace, f" in namespace {namespace}")
        if self.door == "client" and scope is not Scope.PULL:
            return f"this socket is for pulling only; use the operators' socket for {call}"
        if self.rights is None and self.door == "operator":
            return (
                f"not an operator of this agent ({self.who}): be root or a member of the socket's "
                f"group, or give a token (--token-file) that allows {scope}{place}"
            )
        if self.rights is None:
            return f"{call} needs a token that allows {scope}{place}: give one with --token-file"
        held = ", ".join(self.rights.namespaces) or "no namespace"
        return f"{call} needs the right to {scope}{place}; you have {self.rights.scope} in {held}"


def seen_model(caller: Caller, row: dict[str, object]) -> dict[str, object]:
    """A model's record as a caller may see it: without names of other namespaces; {} when none is left."""
    refs = row.get("refs")
    if caller.everywhere or not isinstance(refs, list):
        return row
    seen = [ref for text in refs if caller.sees((ref := Ref.parse(text)).namespace)]
    if not seen:
        return {}
    first = seen[0]
    return row | {
        "ref": str(first), "namespace": first.namespace, "name": first.name,
        "tags": [ref.tag for ref in seen], "refs": [ref.short for ref in seen],
    }  # fmt: skip


def seen_pulls(caller: Caller, rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The pulls that a caller may see; what names no model is for those who see all."""
    return [
        row for row in rows
        if (caller.sees(Ref.parse(str(row["ref"])).namespace) if row["ref"] else caller.everywhere)
    ]  # fmt: skip
