"""The agent's composition root: its parts, in the order in which they start and stop."""

import contextlib
import logging
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

import p2pcache
from p2pcache.agent.api.gate import ApiLimits
from p2pcache.agent.api.handlers import Api
from p2pcache.agent.api.listeners import Door, Listeners
from p2pcache.agent.api.queries import Queries
from p2pcache.agent.context import AgentContext
from p2pcache.agent.doors import hub, oci, s3, torrent
from p2pcache.agent.doors.open_model import RULE, ModelDoor
from p2pcache.agent.doors.torrent_seeds import TorrentSeeds
from p2pcache.agent.downloads.lost_tracker import FILE as MEMBERS_FILE
from p2pcache.agent.downloads.lost_tracker import LostTracker
from p2pcache.agent.fetching.fetching import Fetching
from p2pcache.agent.imports.imports import Imports
from p2pcache.agent.imports.misses import Misses
from p2pcache.agent.jobs.admission import Admission
from p2pcache.agent.jobs.housekeeping import Housekeeping
from p2pcache.agent.jobs.loads import Loads
from p2pcache.agent.jobs.node_answers import NodeAnswers
from p2pcache.agent.jobs.pushes import Pushes
from p2pcache.agent.jobs.room import limits_of
from p2pcache.agent.jobs.warms import FILE as WARMS_FILE
from p2pcache.agent.jobs.warms import Warms
from p2pcache.agent.keep.keeps import Keeps
from p2pcache.agent.node import location
from p2pcache.agent.node.explain import Explainer
from p2pcache.agent.node.labeller import Labeller
from p2pcache.agent.node.metrics import AgentMetrics
from p2pcache.agent.node.model_opener import ModelOpener
from p2pcache.agent.node.origin_opener import OriginOpener
from p2pcache.agent.origin_reads import OriginReads
from p2pcache.agent.settings import AgentSettings
from p2pcache.agent.told_swarms import ToldSwarms
from p2pcache.agent.tracker_link import TrackerLink
from p2pcache.core.pool.selector import checked_labels
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.address import join
from p2pcache.core.protocol.keep_orders import KeepOrders
from p2pcache.core.settings import UploadSettings
from p2pcache.errors import UsageError
from p2pcache.ids import format_node
from p2pcache.io import pools
from p2pcache.io.event_loop import LoopLag
from p2pcache.io.host.host_facts import address_for_peers, beyond_loopback
from p2pcache.io.host.kube import in_cluster
from p2pcache.io.http import server
from p2pcache.io.http.own_addresses import host_for_peers, is_wildcard
from p2pcache.io.models.store import Store
from p2pcache.io.notes.known_members import KnownMembers
from p2pcache.io.notes.pending_warms import PendingWarms
from p2pcache.io.peers.net import PeerNet
from p2pcache.io.peers.protocol.limits import PeerLimits, TokenBucket
from p2pcache.io.peers.transport.tcp_info import check_congestion_control
from p2pcache.io.security.cluster_key import WATCH_S as KEY_WATCH_S
from p2pcache.io.security.cluster_key import (
    KeyWatch,
    check_exposure,
    read_cluster_key,
)
from p2pcache.io.security.tls import WATCH_S, open_tls
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Sources
from p2pcache.io.tasks import Tasks

log = logging.getLogger(__name__)


class AgentApp:
    """One agent: `async with AgentApp(...).running():` serves until the block ends."""

    def __init__(
        self, settings: AgentSettings, limits: ApiLimits | None = None,
        sources: dict[str, SourceSettings] | None = None, *, of_command: bool = False,
    ) -> None:  # fmt: skip
        """Build the parts; nothing listens or connects yet.

        Args:
            settings: of the agent.
            limits: of the API; None: the usual ones.
            sources: from which models may be imported; None: none.
            of_command: it lives as long as one command, and works for nobody else.

        Raises:
            UsageError, NotAllowed: a setting can't work (address, key, cache dir).
        """
        location.check(settings)
        self.settings = settings
        self._of_command = of_command
        secret = read_cluster_key(settings.cluster_key_file)
        self._key = KeyWatch(settings.cluster_key_file, secret)
        host, self._port = server.parse_listen(settings.listen)
        self.tls = tls = open_tls(settings, "agent")
        check_exposure(host, secret, insecure=settings.insecure, tls=tls is not None)
        self._host = host = host_for_peers(host)
        self.listeners = Listeners(settings, limits)
        self._labels = checked_labels(settings.labels.split(","))
        self.store = Store.open(Path(settings.cache_dir), min_free_bytes=settings.min_free_bytes)
        self.store.limits = limits_of(settings, self.store)
        if settings.recycle_bytes:
            log.warning(
                "recycle_bytes does nothing any more and goes with the next release; leave it out"
            )
        own = self.store.node_id
        self.node = own if tls is None else tls.member.node(own)
        self.tasks = Tasks()
        rng = random.Random(self.node)
        self.advertise = location.advertised(settings.advertise)
        # Found now: a look for the tracker's name would stop the loop. The port may come later.
        self._own_host = "" if self.advertise else _own_host(settings, host)
        if self._own_host and self._port:
            self.advertise = join(self._own_host, self._port)
        if settings.congestion_control:
            check_congestion_control(settings.congestion_control)
        disk = TokenBucket(settings.disk_bytes_per_s)
        self.net = PeerNet(
            node=self.node, secret=secret, uploads=UploadSettings(slots=settings.upload_slots),
            upload_bytes_per_s=settings.upload_bytes_per_s or None,
            download_bytes_per_s=settings.download_bytes_per_s or None, disk=disk,
            advertise=self.advertise, limits=PeerLimits(congestion=settings.congestion_control), tls=tls,
        )  # fmt: skip
        self.link = (
            TrackerLink(url=settings.tracker, node=self.node, secret=secret, handler=self,
                        tasks=self.tasks, rng=rng, tls=tls, cache_dir=settings.cache_dir)
            if settings.tracker else None
        )  # fmt: skip
        known_sources = Sources(sources or {})
        self.origin = OriginReads(settings.origin_bytes_per_s, disk, known_sources)
        self.context = AgentContext(
            settings, self.node, self.store, self.net, self.link, self.origin, self.tasks, rng, tls,
            disk, told=ToldSwarms(self.link),
        )  # fmt: skip
        self.fetching = fetching = Fetching(self.context)
        self.governor, self.resolver = fetching.governor, fetching.resolver
        self.journal, self.downloads = fetching.journal, fetching.downloads
        self.claims, self.room = fetching.claims, fetching.room
        self.downloads.admit = Admission(self.context).admit
        self.pushes = Pushes(
            self.context, self.downloads, self.resolver, self.journal, self.room.evict_for,
            fetching.signatures.need,
        )  # fmt: skip
        self.imports = Imports(
            self.context, self.downloads, self.pushes, self.room.evict_for, known_sources
        )
        self._lag = LoopLag()
        self.metrics = AgentMetrics(
            self.context, self.downloads, self.journal, self._lag, lambda: not self.queries.reasons(),
            self.governor,
        )  # fmt: skip
        self.queries = Queries(
            self.context, self.resolver, self.downloads, self.metrics, self.governor
        )
        misses = Misses(
            self.context, self.imports, self.pushes, known_sources, self.resolver.resolve
        )
        pulls = fetching.pulls(misses.bring)
        book = PendingWarms(Path(settings.cache_dir) / WARMS_FILE)
        self.warms = Warms(self.context, self.downloads, pulls, book)
        self.answers = NodeAnswers(
            self.context, self.queries.pulls, self.journal, self.room.state, self.warms.on_told
        )
        self.keeps = Keeps(self.context, self.downloads, pulls, fetching.order, fetching.spellings)
        self.metrics.kept = self.keeps.figures
        self.api = Api(
            store=self.store, resolver=self.resolver, downloads=self.downloads,
            pulls=pulls, warms=self.warms, loads=Loads(self.context, self.downloads, pulls),
            pushes=self.pushes, imports=self.imports,
            housekeeping=Housekeeping(self.context, self.downloads, self.warms, self.journal),
            room=self.room, claims=self.claims, queries=self.queries, journal=self.journal,
            explainer=Explainer(
                self.context, self.downloads, self.resolver, self.journal, self.governor
            ),
            governor=self.governor, gate=self.listeners.gate,
        )  # fmt: skip
        models = ModelDoor(self.store, self.resolver, pulls, self.downloads)
        self.seeds = TorrentSeeds(self.context)
        torrent_door = torrent.TorrentDoor(
            self.store, models, self.seeds, settings.torrent_upload_bytes_per_s
        )
        oci_door = oci.OciDoor(self.store, models, misses.registry_url)
        self._doors = [
            Door("hf_listen", RULE, hub.HubDoor(models), hub.token_of),
            Door("s3_listen", RULE, s3.S3Door(self.store, models, settings.s3_domain), s3.token_of),
            Door("oci_listen", RULE, oci_door, oci.token_of),
            Door("torrent_http_listen", RULE, torrent_door, torrent.token_of, self.seeds.rights),
        ]
        members = KnownMembers(Path(settings.cache_dir) / MEMBERS_FILE)
        self.lost_tracker = LostTracker(self.context, self.downloads, members)
        self._name = location.own_name(settings)
        self._labeller = (
            Labeller(self.context, in_cluster(self._name)) if settings.kubernetes_labels else None
        )
        self._opener = OriginOpener(self.context, self.resolver, self.queries)
        self._models = ModelOpener(
            self.context, self.downloads, lambda: self.listeners.gate.calls > 0
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start in order, yield, stop in order: stop taking, finish uploads and reads, flush, leave."""
        try:
            async with self.tasks, contextlib.AsyncExitStack() as stack:
                host, self._port = await self.net.start(self._host, self._port)
                if not self.advertise:
                    self.advertise = join(self._own_host or host, self._port)
                    self.net.move(self.advertise)
                self.queries.address, self.queries.name = self.advertise, self._name
                self.context.usage = await pools.STEPS.run(self.store.usage)
                await pools.STEPS.run(self.fetching.far_sites.start)
                await self._models.open_first()
                if self.settings.origin:
                    await self._opener.use(self.settings.origin)
                if self.link is not None:
                    await self.room.measure()
                    _ = self.tasks.spawn(self.link.run(), name="tracker-link")
                self.fetching.start()
                self.keeps.start()
                self.lost_tracker.start()
                self._lag.start(self.tasks)
                for one in (self._key, self.listeners.key):
                    self.tasks.every(KEY_WATCH_S, one.watch, name="key")
                if self.tls is not None:
                    self.tasks.every(WATCH_S, self.tls.watch, name="certificate")
                if self._labeller is not None:
                    self._labeller.start()
                await stack.enter_async_context(self.listeners.listening(self.api, self._doors))
                self.tasks.spawn_contained(self._models.open_rest(), name="open-models")
                self.seeds.start()
                log.info(
                    "agent %s: peers at %s, API at %s, cache %s", format_node(self.node), self.advertise,
                    self.settings.socket, self.settings.cache_dir,
                )  # fmt: skip
                yield
                await self._stop()
        finally:
            self.journal.close()
            self.lost_tracker.close()
            self.store.close()

    def reload(self) -> None:
        """SIGHUP: read keys and certificate again. All else needs a restart."""
        self._key.reload()
        self.listeners.key.reload()
        if self.tls is not None:
            self.tls.reload()

    async def _stop(self) -> None:
        self.listeners.gate.stopping.set()
        self.warms.on_stopping()
        self.imports.on_stopping()
        if self._of_command:
            self.fetching.on_command_ended()
        log.info("stopping: finishing uploads and reads for up to %.0f s", self.settings.shutdown_s)
        await self.fetching.stop()

    # -- TrackerHandler ----------------------------------------------------------------------------

    def announcement(self) -> m.Announce:
        """This node's whole state."""
        self._update_address()
        return m.Announce(
            self.advertise, p2pcache.__version__, self.settings.rack, self.settings.site,
            self.context.told.announce(self.downloads.swarms.values()),
            self._name, warms=True, tells=True, keeps=True, role=self.settings.role, labels=self._labels,
            room_bytes=self.room.for_parts_bytes, link_bytes_s=self._link_bytes_s(),
        )  # fmt: skip

    def _link_bytes_s(self) -> int:
        """What others can have from this node: what its link carries, or the operator allows; 0: not known."""
        known = (self.settings.upload_bytes_per_s, self.governor.link_bytes_s)
        return min((rate for rate in known if rate), default=0)

    def _update_address(self) -> None:
        """Update our address if we listen on every address: the one that reaches the tracker may have changed."""
        link = self.link
        if link is None or self.settings.advertise or not is_wildcard(self._host):
            return
        host = beyond_loopback(link.local_host)
        address = join(host, self._port) if host else self.advertise
        if address != self.advertise:
            log.warning("our address was %s and is %s now", self.advertise, address)
            self.advertise = self.queries.address = address
            self.net.move(address)

    def heartbeat(self) -> m.Heartbeat:
        """A sign of life, with the states of swarms that want runs."""
        return msgspec.structs.replace(
            self.context.sign_of_life(),
            swarms=self.context.told.active(self.downloads.swarms.values()),
            ended=self.journal.take_untold(),
            room_bytes=self.room.for_parts_bytes,
        )

    def tracker_up(self, settled: m.Settled) -> None:
        """Take the tracker's origin, unless the operator named one here."""
        if not self.settings.origin and settled.origin:
            self._opener.adopt(settled.origin)
        self.lost_tracker.tracker_up()
        for swarm in self.downloads.swarms.values():
            swarm.tracker_up(settled.epoch)
        rest = self.context.told.send_rest(self.downloads.swarms)
        self.tasks.spawn_contained(rest, name="tracker-enter")
        if self.link is not None:
            self.link.send(self.heartbeat())  # the tracker should know our free space at once

    def tracker_down(self) -> None:
        """Tell every swarm."""
        self.lost_tracker.tracker_down()
        for swarm in self.downloads.swarms.values():
            swarm.tracker_down()

    def tracker_said(self, message: m.ToAgent) -> None:
        """Hand a message of the tracker to the part that it is for."""
        if isinstance(message, m.NodeQuestion):
            self.answers.on_question(message)
            return
        if isinstance(message, KeepOrders):
            self.tasks.spawn_contained(self.keeps.on_orders(message), name="keep-orders")
            return
        if isinstance(message, m.ClonedId):
            self.queries.on_twin_seen(message.address)
            return
        self.lost_tracker.on_message(message)
        digest = getattr(message, "digest", None)
        swarm = self.downloads.swarms.get(digest) if isinstance(digest, str) else None
        if swarm is not None:
            swarm.tracker_said(message)


def _own_host(settings: AgentSettings, host: str) -> str:
    """The address of ours to announce when we listen on every address; "": the bound one will do."""
    if not is_wildcard(host):
        return ""
    if found := address_for_peers(settings.tracker):
        return found
    raise UsageError(
        "listening on every address, there is none that others can dial; set --advertise HOST:PORT"
    )
