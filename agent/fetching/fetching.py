"""The parts of an agent that fetch models: all that a command's own agent has, and the middle of every other one."""

import time

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.downloads.priority import DownloadOrder
from p2pcache.agent.downloads.resolver import Resolver
from p2pcache.agent.downloads.spellings import Spellings
from p2pcache.agent.far_sites.far_sites import FarSites
from p2pcache.agent.jobs.claims import Claims
from p2pcache.agent.jobs.pulls import Bring, Pulls
from p2pcache.agent.jobs.room import RoomMaker
from p2pcache.agent.journal import Journal
from p2pcache.agent.node.governor_loop import GovernorLoop
from p2pcache.agent.node.janitor import Janitor
from p2pcache.agent.trust.required_signatures import RequiredSignatures
from p2pcache.core.settings import SwarmSettings


class Fetching:
    """Resolving, downloading, and what keeps the cache in order meanwhile."""

    def __init__(self, context: AgentContext) -> None:
        """Nothing runs yet.

        Raises:
            P2PCacheError: a setting can't work.
        """
        settings = context.settings
        self._context = context
        self.governor = GovernorLoop(context, settings)
        self.resolver = Resolver(context.store, context.link)
        self.journal = Journal(context.store, context.tasks)
        self.signatures = RequiredSignatures(
            settings.require_signature, settings.sigstore_trust_config, context.store.root,
            self.resolver.read_signatures,
        )  # fmt: skip
        self.far_sites = FarSites(context, self.resolver.manifest)
        self.downloads = DownloadManager(
            context, self.far_sites.manifest, SwarmSettings(), self.journal, self.signatures.need,
            self.far_sites.bringing,
        )  # fmt: skip
        self.claims = Claims(context)
        self.room = RoomMaker(context, self.downloads, self.journal)
        self.order = DownloadOrder(context, self.downloads, self.room.evict_for)
        self.spellings = Spellings(context.store, self.resolver, context.tasks)
        self._janitor = Janitor(context, self.downloads, self.governor)

    def pulls(self, bring: Bring | None = None) -> Pulls:
        """Pulls for clients; `bring`: as of `Pulls`."""
        return Pulls(
            self._context.store, self.resolver, self.downloads, self.journal, self.order, self.spellings,
            self._context.settings.abandon_after_s, bring,
        )  # fmt: skip

    def start(self) -> None:
        """Begin the periodic work."""
        self._janitor.start()
        self.room.start()
        self.claims.start()
        self.governor.start()

    def on_command_ended(self) -> None:
        """The command that this agent works for has ended: what still runs was left on purpose, and is no failure."""
        self.downloads.on_command_ended()

    async def stop(self) -> None:
        """Stop taking, finish uploads and reads, leave."""
        context = self._context
        limit_s = context.settings.shutdown_s
        until = time.monotonic() + limit_s
        for download in list(self.downloads.running.values()):
            download.swarm.pause(finish=True)
        # First, so that neighbours may still get what comes: nobody else reads these runs.
        await context.origin.drained(limit_s)
        # Uploads went on meanwhile.
        await context.net.stop(drain_s=max(0.0, until - time.monotonic()))
        if context.link is not None:
            await context.link.close()
        self.downloads.stop()
