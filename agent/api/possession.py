"""Which blobs a client with limited rights has proved to hold.

To know a digest isn't to have the bytes. A client that may not read every namespace can push only blobs that
it has sent, or that models of its own namespaces hold.
"""

from p2pcache.agent.api.rights import Caller, Denied
from p2pcache.core.format.layout import Layout
from p2pcache.io.models.store import Store

MAX_PUSHES = 256  # remembered at once; a client whose push was forgotten must send its blobs again


class Possession:
    """The blobs that callers have sent and that were proved, by caller and manifest. Memory only."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._proved: dict[tuple[str, str], set[str]] = {}

    def on_blob_proved(self, caller: Caller, manifest: str, blob: str) -> None:
        """A caller has sent all bytes of a blob, and they match its digest."""
        key = (caller.client, manifest)
        blobs = self._proved.pop(key, set())
        blobs.add(blob)
        self._proved[key] = blobs
        if len(self._proved) > MAX_PUSHES:
            del self._proved[next(iter(self._proved))]

    def unproved(self, caller: Caller, layout: Layout) -> set[str]:
        """Blobs of a model that the caller has still to send. May block for disk."""
        if caller.everywhere:
            return set()
        wanted = {blob.id for blob in layout.blobs if blob.size}
        return wanted - self._proved.get((caller.client, layout.digest), set()) - self._own(caller)

    def check(self, caller: Caller, layout: Layout) -> None:
        """Refuse a push if its caller still has to send blobs. May block for disk.

        Raises:
            Denied: blobs are missing; the text says how many.
        """
        missing = self.unproved(caller, layout)
        if missing:
            raise Denied(
                f"{len(missing)} files of this model weren't sent by you, and no model of your "
                "namespaces holds them; push again"
            )

    def _own(self, caller: Caller) -> set[str]:
        """Blobs of the complete models that the caller may read."""
        found: set[str] = set()
        for known in self._store.models():
            if known.complete and known.tags and caller.sees_some(known.tags):
                model = self._store.get(known.digest)
                if model is not None:
                    found.update(blob.id for blob in model.layout.blobs)
        return found
