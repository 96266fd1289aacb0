"""Opens this node's storage, and tests it until it takes our credentials."""

import asyncio
import logging
from typing import Protocol

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.resolver import Resolver
from p2pcache.errors import P2PCacheError, Unreachable, UsageError, without_frames
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.tasks import Threads

log = logging.getLogger(__name__)

RETRY_S = 10.0  # between two tries to open the origin
ASK_AGAIN_S = (
    10.0  # between two tests whether a refusal of the origin is over: a pull may not come for hours
)
PROVE_S = 60.0  # between two tests of an origin that refuses our credentials
GOOD_LOOKS = 2  # in a row end an outage: one request of a storage that comes and goes may succeed


class Shown(Protocol):
    """What people are told of storage."""

    origin_trouble: P2PCacheError | None
    origin_doubt: P2PCacheError | None


class Outage:
    """Logs that storage fails, once for each kind of cause in a row, and that it answers again."""

    def __init__(self) -> None:
        self._told: type[P2PCacheError] | None = None  # kind of the cause; None: nothing fails
        self._good_looks = 0  # since it failed last

    def look(self, trouble: P2PCacheError | None) -> None:
        """Take what a look at the storage found; None: it answers."""
        if trouble is not None:
            self._good_looks = 0
            if type(trouble) is not self._told:  # texts of one cause may differ in each answer
                log.warning("storage fails: %s", trouble)
            self._told = type(trouble)
            return
        self._good_looks += 1
        if self._told is not None and self._good_looks >= GOOD_LOOKS:
            log.info("storage answers again")
            self._told = None


class OriginOpener:
    """Opens the origin that the operator named, or else the tracker."""

    def __init__(self, context: AgentContext, resolver: Resolver, queries: Shown) -> None:
        """Nothing is open.

        Args:
            context: its `origin` gets the storage.
            resolver: gets it, too.
            queries: tell people what is wrong with it.
        """
        self._context = context
        self._origin = context.origin
        self._resolver = resolver
        self._queries = queries
        self._threads = Threads(2, name="origin-open")  # never joined, because storage may hang
        self._url = ""
        self._outage = Outage()  # of the storage at this URL

    async def use(self, url: str) -> None:
        """Open the storage; if it can't be opened, log that once and try again later.

        Raises:
            UsageError: it is no URL of a storage.
        """
        self._opening(url)
        tasks = self._context.tasks
        try:
            repo = OriginRepo(await self._threads.run(open_origin, url))
        except UsageError:
            raise
        except P2PCacheError as error:
            self._outage.look(error)
            self._resolver.origin_error = self._origin.unopened = without_frames(error)
            self._queries.origin_trouble = error
            tasks.spawn_contained(self._retry(url), name="origin-retry")
        else:
            self._queries.origin_trouble = None
            self._resolver.origin_error = self._origin.unopened = None
            self._resolver.repo = self._origin.repo = repo
            tasks.spawn_contained(self._prove(repo), name="origin-proof")
        finally:
            self._origin.settled.set()

    def adopt(self, url: str) -> None:
        """Open the storage that the tracker announced, unless it is the one that we have."""
        if url == self._url:
            return
        # Now, because a lease may be granted before the task runs.
        self._opening(url)
        self._context.tasks.spawn_contained(self._adopt(url), name="origin-open")

    async def _adopt(self, url: str) -> None:
        try:
            await self.use(url)
        except UsageError as error:
            self._queries.origin_trouble = UsageError(f"the tracker announced {url}: {error}")
            log.error("%s", self._queries.origin_trouble)

    def _opening(self, url: str) -> None:
        if url != self._url:
            self._outage = Outage()
        self._url = url
        self._origin.settled.clear()
        self._queries.origin_trouble = Unreachable(f"{url} is being opened")

    async def _retry(self, url: str) -> None:
        await asyncio.sleep(RETRY_S)
        if self._url == url and self._origin.repo is None:
            await self.use(url)

    async def _prove(self, repo: OriginRepo) -> None:
        """Test the origin, so that wrong credentials or a missing bucket are known before the first pull."""
        outage = self._outage
        while self._origin.repo is repo:
            doubt: P2PCacheError | None = None
            try:
                await self._threads.run(repo.prove)
            except P2PCacheError as error:
                doubt = without_frames(error)
            outage.look(doubt)
            self._queries.origin_doubt = doubt
            if doubt is None:
                break
            await asyncio.sleep(PROVE_S)
        while self._origin.repo is repo:  # credentials may expire later, and be renewed
            await asyncio.sleep(ASK_AGAIN_S)
            await self._threads.run(repo.ask_again)
            # Reads end without an error where others get their leases meanwhile, and so the log knew of no outage.
            outage.look(repo.trouble)
