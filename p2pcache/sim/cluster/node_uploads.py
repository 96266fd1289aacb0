"""What one simulated agent's data plane does for its askers: the real `UploadQueue`, and flows."""

from typing import TYPE_CHECKING

from p2pcache.core.settings import UploadSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.priority import Priority
from p2pcache.core.upload.upload_queue import UploadQueue
from p2pcache.sim.cluster.network import Flow
from p2pcache.sim.cluster.node_place import path
from p2pcache.sim.cluster.node_reads import STALL_S

if TYPE_CHECKING:
    from p2pcache.sim.cluster.node import SimNode


class Upload:
    """One request at the node that serves it."""

    __slots__ = ("asker", "began", "flow", "number", "run", "started")

    def __init__(self, asker: "SimNode", number: int, run: int) -> None:
        self.asker = asker
        self.number = number  # the asker's
        self.run = run
        self.flow: Flow | None = None  # while it flows; it knows us, too
        self.started = 0.0
        self.began = 0.0  # when its first byte came to the asker


class Serving:
    """The serving half of a node.

    Invariant: `_uploads` holds exactly what waits or is active in `queue`.
    """

    def __init__(self, node: "SimNode", settings: UploadSettings) -> None:
        self._node = node
        self.queue: UploadQueue[Upload] = UploadQueue(settings)
        # What it does instead of serving: "hung" sends nothing, "dripping" so little that the connection is given up,
        # "busy" has never a place.
        self.fault = ""
        self.askers: dict[int, SimNode] = {}  # who may request from us
        self._uploads: dict[tuple[int, int], Upload] = {}  # by asker and its number

    def serve(self, asker: "SimNode", number: int, run: int, turn: Priority) -> None:
        """A request came in."""
        node = self._node
        if not node.alive or asker.node not in self.askers:
            return
        upload = Upload(asker, number, run)
        if not node.have >> run & 1:
            node.cluster.send(node, asker, asker.ended, number, Outcome.REFUSED)
            return
        if self.fault == "busy":
            node.cluster.send(node, asker, asker.ended, number, Outcome.BUSY)
            return
        if self.fault:
            node.world.after(STALL_S, asker.gives_up, node, number, self.fault == "dripping")
            return
        self.queue.mark_slow_receivers(node.world.now)
        if not self.queue.offer(asker.node, upload, turn):
            node.cluster.send(node, asker, asker.ended, number, Outcome.BUSY)
        else:
            self._uploads[asker.node, number] = upload
            self._start()

    def unserve(self, asker: "SimNode", number: int) -> None:
        """A CANCEL came in: it helps only while the request waits."""
        node = self._node
        upload = self._uploads.get((asker.node, number))
        if upload is not None and self.queue.cancel_waiting(asker.node, upload):
            del self._uploads[asker.node, number]
            node.cluster.send(node, asker, asker.ended, number, Outcome.CANCELLED)

    def dropped_by(self, asker: "SimNode") -> None:
        """The asker's connection is gone."""
        self.askers.pop(asker.node, None)
        self._node.audience_changed()
        for upload in self.queue.on_peer_gone(asker.node):
            del self._uploads[asker.node, upload.number]
        for key, upload in list(self._uploads.items()):
            if upload.asker is asker:
                self._stop(upload)
                del self._uploads[key]
                self.queue.on_upload_ended(asker.node, upload)
        self._start()

    def stop(self) -> None:
        """The node is dead: nothing more flows."""
        for upload in self._uploads.values():
            self._stop(upload)

    def _stop(self, upload: Upload) -> None:
        if upload.flow is not None:
            self._node.net.cancel(upload.flow)
            upload.flow = None

    def check(self) -> None:
        """Assert the queue's invariants."""
        self.queue.check()

    def _start(self) -> None:
        node = self._node
        while node.alive and (started := self.queue.start_next()) is not None:
            upload = started[1]
            upload.started = node.world.now
            asker = upload.asker
            cluster = node.cluster
            upload.began = (
                upload.started + cluster.latency_s + cluster.queued_s_between(node, asker)
            )
            links = path(node.place, node.up, asker.place, asker.down)
            size = node.run_bytes[upload.run]
            upload.flow = node.net.start(links, size, self._sent, upload)
        self.queue.mark_slow_receivers(node.world.now)

    def _sent(self, upload: Upload) -> None:
        node, asker = self._node, upload.asker
        upload.flow = None
        del self._uploads[asker.node, upload.number]
        took_s = node.world.now - upload.started
        self.queue.on_upload_ended(asker.node, upload, took_s, node.scheduler.pace_s)
        self.queue.mark_slow_receivers(node.world.now)
        outcome = Outcome.MISMATCH if node.liar else Outcome.DONE
        node.cluster.send(node, asker, asker.ended, upload.number, outcome, upload.began)
        self._start()
        for refused in self.queue.recall():
            node.cluster.send(
                node, refused.asker, refused.asker.told, node.node, 0, self.queue.load
            )
