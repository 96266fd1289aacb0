"""Which of two live agents with one node id may be a member. Pure.

A machine image, or a cache, that was copied gives two agents one id. Each would throw the other out for ever. A
restarted agent must take its dead process's place at once, though, and no tracker can tell a dead process from a live
one behind a connection that is still open. But who was replaced and comes back lives: then there are two.
"""

MOST_REPLACED = 16  # processes kept in mind of one id


class ClonedIds:
    """Processes by node id. Each draws a random number at its start; 0: a release that draws none, always let in.

    Invariant: `_replaced` has no node that `_here` lacks.
    """

    def __init__(self) -> None:
        self._here: dict[int, int] = {}  # node -> its process that is a member
        self._replaced: dict[int, dict[int, None]] = {}  # node -> its earlier ones, oldest first

    def admit(self, node: int, instance: int) -> bool:
        """A process wants to be a member; False: another one with its id took its place, and is still there."""
        here, replaced = self._here.get(node, 0), self._replaced.get(node, {})
        if instance and instance in replaced:
            return False
        if here and instance and here != instance:
            replaced = self._replaced.setdefault(node, {})
            replaced[here] = None
            if len(replaced) > MOST_REPLACED:
                del replaced[next(iter(replaced))]
        self._here[node] = instance
        return True

    def left(self, node: int) -> None:
        """The member with this id is gone: whoever comes next may take its place."""
        self._here.pop(node, None)
        self._replaced.pop(node, None)
