"""Which nodes an intent speaks of: `rack=r1,rack=r2,role=seed,gpu=h100`."""

from collections.abc import Iterable
from typing import NamedTuple, Self

from p2pcache.core.pool.settings import MAX_SELECTOR
from p2pcache.core.protocol.keep_orders import MAX_LABELS, ROLES
from p2pcache.errors import UsageError

_PLACES = ("site", "rack", "node", "role")


class Traits(NamedTuple):
    """What can be said of a node."""

    node: str  # its name
    site: str = ""
    rack: str = ""
    role: str = "cache"
    labels: tuple[str, ...] = ()  # KEY=VALUE


class Selector(NamedTuple):
    """Every key must be right; of several values of one key, any. No pair: all nodes but clients."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse what a person typed.

        Raises:
            UsageError: it is no selector.
        """
        if len(text) > MAX_SELECTOR:
            raise UsageError(f"a selector has {MAX_SELECTOR} characters at most")
        pairs = []
        for part in text.split(",") if text else ():
            key, equal, value = (word.strip() for word in part.partition("="))
            if not (key and equal and value and key.isprintable() and value.isprintable()):
                raise UsageError(
                    f"not a selector of nodes: {text[:80]!r}; expected KEY=VALUE[,KEY=VALUE...] with site, rack, "
                    "node, role or a label as key, for example rack=r1,role=seed"
                )
            if key == "role" and value not in ROLES:
                raise UsageError(
                    f"not a role of nodes: {value[:40]!r}; roles are {', '.join(ROLES)}"
                )
            pairs.append((key, value))
        return cls(tuple(pairs))

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.pairs)

    def chooses(self, traits: Traits) -> bool:
        """Whether it speaks of a node."""
        keys = {key for key, _ in self.pairs}
        if traits.role == "client" and "role" not in keys:
            return False
        said = {(key, getattr(traits, key)) for key in _PLACES}
        said |= {(key, value) for key, _, value in (one.partition("=") for one in traits.labels)}
        return all(any((key, value) in said for k, value in self.pairs if k == key) for key in keys)


def checked_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels of a node as they are announced.

    Raises:
        UsageError: one is none, or there are too many.
    """
    found = tuple(label.strip() for label in labels if label.strip())
    if len(found) > MAX_LABELS:
        raise UsageError(f"{len(found)} labels; a node has {MAX_LABELS} at most")
    for label in found:
        key, equal, value = label.partition("=")
        if (
            not (key and equal and value)
            or key in _PLACES
            or "," in label
            or not label.isprintable()
        ):
            raise UsageError(
                f"not a label: {label[:80]!r}; expected KEY=VALUE, for example gpu=h100; "
                "site, rack, node and role are settings of their own"
            )
    return found
