"""Keeps this node's Kubernetes labels true: one for each model that is complete here."""

import logging

from p2pcache.agent.context import AgentContext
from p2pcache.core.host.kubernetes_labels import changes, wanted_labels
from p2pcache.errors import P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.host.kube import NodeLabels

log = logging.getLogger(__name__)

LOOK_S = 5.0  # between two looks at the cache; the API server gets changes only
RESYNC_S = 600.0  # between two reads of the labels: a person may have edited them
FAILED_S = 60.0  # after an error: the nodes of a large cluster must not ask in a storm


class Labeller:
    """Compares the models of the cache with the Node's labels, and patches the difference."""

    def __init__(self, context: AgentContext, labels: NodeLabels) -> None:
        self._context = context
        self._labels = labels
        self._agreed: dict[str, str] | None = None  # the Node's labels as last read or written
        self._next_read = 0.0
        self._trouble = ""

    def start(self) -> None:
        """Begin to look."""
        self._context.tasks.every(LOOK_S, self.sync_labels, name="kubernetes-labels")

    async def sync_labels(self) -> None:
        """Compare once, and make the calls that follow. Errors are logged, once for each cause."""
        wanted = await pools.STEPS.run(self._wanted)
        now = self._context.now()
        if now < self._next_read and (self._agreed is None or self._agreed == wanted):
            return
        try:
            difference = changes(await self._labels.fetch_labels(), wanted)
            if difference:
                await self._labels.patch(difference)
        except P2PCacheError as error:
            self._agreed = None
            self._next_read = now + FAILED_S
            if str(error) != self._trouble:
                log.warning("node labels: %s", error)
            self._trouble = str(error)
            return
        if difference:
            log.info("node labels: %d models, %d changes", len(wanted), len(difference))
        self._agreed, self._trouble = wanted, ""
        self._next_read = now + RESYNC_S * self._context.rng.uniform(0.8, 1.2)

    def _wanted(self) -> dict[str, str]:
        models = [known for known in self._context.store.models() if known.complete]
        models.sort(key=lambda known: -known.last_used)
        pairs: list[tuple[Ref, str]] = [
            (ref, known.digest) for known in models for ref in known.tags
        ]
        return wanted_labels(pairs)
