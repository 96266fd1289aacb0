"""Asks the tracker whether the pool may hold one more copy of a model."""

import logging

import msgspec

from p2pcache.agent.context import AgentContext
from p2pcache.errors import NoSpace, OverQuota, P2PCacheError
from p2pcache.ids import Ref, format_node

log = logging.getLogger(__name__)

ANSWER_S = 3.0  # of a tracker that answers at once or is in trouble: quotas are no reason to keep a pull waiting


class Admission:
    """Quotas of namespaces are the tracker's. Without it, or with one of the release before, nobody counts."""

    def __init__(self, context: AgentContext) -> None:
        """Nothing was asked."""
        self._context = context

    async def admit(self, ref: Ref, digest: str, size_bytes: int) -> None:
        """Return if this node may take a copy.

        Raises:
            OverQuota: its namespace's quota is used up.
        """
        link = self._context.link
        if link is None or not link.connected:
            return
        node = format_node(self._context.node)
        wish = {"ref": str(ref), "digest": digest, "bytes": size_bytes, "node": node}
        try:
            await link.ask("admit", msgspec.json.encode(wish).decode(), timeout_s=ANSWER_S)
        except NoSpace as error:
            raise OverQuota(f"{ref} isn't taken: {error}") from None
        except P2PCacheError as error:
            log.info("the tracker doesn't say whether %s has room in its quota: %s", ref, error)
