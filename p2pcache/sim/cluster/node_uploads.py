"""What a simulated node uploads: the real `UploadQueue`, and flows."""

from p2pcache.core.mechanisms import Mechanisms
from p2pcache.core.settings import UploadSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.priority import Priority
from p2pcache.core.upload.upload_queue import UploadQueue
from p2pcache.ids import NodeId, RunIndex
from p2pcache.sim.cluster.network import Flow
from p2pcache.sim.cluster.node_place import path
from p2pcache.sim.cluster.node_reads import STALL_S
from p2pcache.sim.cluster.node_state import NodeState


class Upload:
    """One request at the node that serves it."""

    __slots__ = ("asker", "began", "flow", "number", "run", "started")

    def __init__(self, asker: NodeState, number: int, run: RunIndex) -> None:
        self.asker = asker
        self.number = number  # the asker's
        self.run = run
        self.flow: Flow | None = None  # None: it waits, or has ended
        self.started = 0.0
        self.began = 0.0  # when its first byte came to the asker


class NodeUploads:
    """The uploads of one node.

    Invariant: `_uploads` holds exactly what waits or is active in `queue`.
    """

    def __init__(self, node: NodeState, settings: UploadSettings, on: Mechanisms) -> None:
        self._node = node
        self.queue: UploadQueue[Upload] = UploadQueue(settings, on)
        # What the node does instead of serving: "hung" sends nothing, "dripping" sends so little that the asker
        # gives up the connection, "busy" always answers BUSY.
        self.fault = ""
        self._uploads: dict[tuple[NodeId, int], Upload] = {}  # by asker and the asker's number

    def serve(self, asker: NodeState, number: int, run: RunIndex, priority: Priority) -> None:
        """A request came in.

        Args:
            asker: the node that asks.
            number: of the request, at the asker.
            run: what it asks for.
            priority: how urgent it is.
        """
        node = self._node
        upload = Upload(asker, number, run)
        if not node.have >> run & 1:
            node.send(asker, asker.ended, number, Outcome.REFUSED)
            return
        if self.fault == "busy":
            node.send(asker, asker.ended, number, Outcome.BUSY)
            return
        if self.fault:
            node.world.after(STALL_S, asker.give_up, number, self.fault == "dripping")
            return
        self.queue.mark_slow_receivers(node.world.now)
        if not self.queue.offer(asker.node, upload, priority):
            node.send(asker, asker.ended, number, Outcome.BUSY)
        else:
            self._uploads[asker.node, number] = upload
            self._start()

    def cancel_upload(self, asker: NodeState, number: int) -> None:
        """A CANCEL came in: it helps only while the request waits."""
        node = self._node
        upload = self._uploads.get((asker.node, number))
        if upload is not None and self.queue.cancel_waiting(asker.node, upload):
            del self._uploads[asker.node, number]
            node.send(asker, asker.ended, number, Outcome.CANCELLED)

    def asker_left(self, asker: NodeState) -> None:
        """The asker's connection is gone."""
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
            self._node.net.end_flow(upload.flow)
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
            upload.began = upload.started + node.env.latency_s + node.queued_s_to(asker)
            links = path(node.place, node.up, asker.place, asker.down)
            size = node.run_bytes[upload.run]
            upload.flow = node.net.start(links, size, self._sent, upload)
        self.queue.mark_slow_receivers(node.world.now)

    def _sent(self, upload: Upload) -> None:
        node, asker = self._node, upload.asker
        upload.flow = None
        del self._uploads[asker.node, upload.number]
        took_s = node.world.now - upload.started
        nbytes = node.run_bytes[upload.run]
        self.queue.on_upload_ended(asker.node, upload, took_s, nbytes)
        self.queue.mark_slow_receivers(node.world.now)
        outcome = Outcome.MISMATCH if node.liar else Outcome.DONE
        node.send(asker, asker.ended, upload.number, outcome, upload.began)
        self._start()
        for refused, load in self.queue.recall(node.world.now):
            node.send(refused.asker, refused.asker.on_have_batch, node.node, 0, load)
