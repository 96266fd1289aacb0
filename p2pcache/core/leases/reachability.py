"""Whom others can't dial, so far as is known, or don't believe. Pure."""

from collections.abc import Set as AbstractSet

HIDDEN_S = 60.0  # nobody mends a firewall sooner; a partition may heal


class Hiding:
    """Nodes that were out of the others' reach lately, and those that have to read all the same."""

    def __init__(self, doubted: AbstractSet[int]) -> None:
        """Nobody; `doubted`: nodes that perhaps nobody can dial, kept up to date by their owner."""
        self.doubted = doubted
        self.hidden: dict[int, float] = {}  # until when
        self.pardoned: dict[int, float] = {}
        self.shunned: set[int] = (
            set()
        )  # nobody would believe what they read: they read for themselves

    def is_reached(self, node: int) -> bool:
        """Whether others can dial it, or it reads whoever gets at that."""
        out = node in self.hidden or node in self.doubted or node in self.shunned
        return not out or node in self.pardoned

    def hide(self, node: int, now: float) -> None:
        """Others can't get from the node what it has: let somebody else read."""
        self.hidden[node] = now + HIDDEN_S

    def show(self, node: int) -> None:
        """Others can get from the node what it has, after all."""
        self.hidden.pop(node, None)

    def pardon(self, node: int, now: float) -> None:
        """It reaches nobody itself: it has to read."""
        self.pardoned[node] = now + HIDDEN_S

    def forget(self, node: int) -> None:
        """It is gone."""
        self.hidden.pop(node, None)
        self.pardoned.pop(node, None)
        self.shunned.discard(node)

    def hidden_at(self, now: float) -> set[int]:
        """Who is hidden, for people: nobody wakes us while nobody wants a lease."""
        return {node for node, until in self.hidden.items() if until > now}
