"""Memory for batches, and the tensors made of it: new on the host, new on a device, or the caller's own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from p2pcache.loader.collector import no_collections
from p2pcache.loader.format.dtypes import Framework
from p2pcache.loader.memory.arena import Block
from p2pcache.loader.memory.backend import Backend
from p2pcache.loader.memory.host_pool import Budget, HostPool
from p2pcache.loader.memory.tensors import wrap
from p2pcache.loader.plan.batches import Batch
from p2pcache.loader.plan.placement import Placement

Stop = Callable[[], bool]


@dataclass(slots=True)
class Target:
    """Memory for one batch, either on the host or on a device."""

    views: list[memoryview] = field(default_factory=list)  # of each item, on the host
    places: list[tuple[Any, int]] = field(default_factory=list)  # of each: (device buffer, offset)
    block: Block | None = None  # in which the views lie, if it is the load's own
    events: list[Any] = field(default_factory=list)  # come when its copies to the device are done


class Sink(Protocol):
    """Allocates memory for batches, and makes tensors when it is filled."""

    def allocate(self, batch: Batch, stop: Stop) -> Target | None:
        """Allocate memory for a batch as soon as the limit allows it; None once `stop()` is true."""
        ...

    def make_tensors(self, batch: Batch, target: Target) -> list[tuple[str, Any]]:
        """(name, tensor) of each item; called in the consumer's thread when all bytes are read."""
        ...

    def on_next_batch(self) -> None:
        """The consumer asks for the next batch, so memory that was lent to it comes back."""
        ...

    def close(self) -> None:
        """End the load, after the last read; tensors that were handed out stay valid."""
        ...


class HostSink:
    """New tensors in host memory."""

    def __init__(self, pool: HostPool, framework: Framework, *, owned: bool) -> None:
        """Say what tensors are made.

        Args:
            pool: allocates the memory.
            framework: of the tensors.
            owned: False: a batch's tensors are valid only until the consumer asks for the next batch.
        """
        self._pool = pool
        self._framework = framework
        self._owned = owned
        self._lent: Block | None = None

    def allocate(self, batch: Batch, stop: Stop) -> Target | None:
        """See `Sink.allocate`."""
        block = self._pool.alloc(batch.nbytes, stop)
        if block is None:
            return None
        with no_collections():
            views = [
                block.view[offset : offset + item.nbytes]
                for item, offset in zip(batch.items, batch.offsets, strict=True)
            ]
        return Target(views=views, block=block)

    def make_tensors(self, batch: Batch, target: Target) -> list[tuple[str, Any]]:
        """See `Sink.make_tensors`."""
        block, target.block = target.block, None
        assert block is not None
        target.views.clear()
        with no_collections():
            made = [
                (
                    w.info.name,
                    wrap(block.owner, o, w.nbytes, w.info.dtype, w.shape, self._framework),
                )
                for w, o in zip(batch.items, batch.offsets, strict=True)
            ]
        if self._owned:
            self._pool.hand_over(block)
        else:
            self._lent = block
        return made

    def on_next_batch(self) -> None:
        """See `Sink.on_next_batch`."""
        self._pool.on_next_batch()
        if self._lent is not None:
            self._pool.recycle(self._lent)
            self._lent = None

    def close(self) -> None:
        """See `Sink.close`."""
        self.on_next_batch()
        self._pool.close()


class DeviceSink:
    """New tensors in a device's memory."""

    def __init__(self, backend: Backend, budget: Budget) -> None:
        """Choose the device.

        Args:
            backend: the device.
            budget: bounds the device memory that isn't handed out yet.
        """
        self._backend = backend
        self._budget = budget

    def allocate(self, batch: Batch, stop: Stop) -> Target | None:
        """See `Sink.allocate`."""
        if not self._budget.acquire(batch.nbytes, stop):
            return None
        buffer = self._backend.alloc_device(batch.nbytes)
        return Target(places=[(buffer, offset) for offset in batch.offsets])

    def make_tensors(self, batch: Batch, target: Target) -> list[tuple[str, Any]]:
        """See `Sink.make_tensors`."""
        self._budget.release(batch.nbytes)
        buffer = target.places[0][0]
        self._backend.ready([buffer], target.events)
        return [
            (w.info.name, self._backend.tensor(buffer, o, w.nbytes, w.info.dtype, w.shape))
            for w, o in zip(batch.items, batch.offsets, strict=True)
        ]

    def on_next_batch(self) -> None:
        """See `Sink.on_next_batch`: nothing is lent, device tensors own their memory."""

    def close(self) -> None:
        """See `Sink.close`: unclaimed memory goes with its last reference."""


class IntoSink:
    """The caller's own tensors: read straight into where possible, else converted and copied."""

    def __init__(self, placement: Placement, backend: Backend | None, other: HostSink) -> None:
        """Say how each tensor is reached. All items of a batch must be reached in the same way.

        Args:
            placement: the caller's tensors.
            backend: of the device, if some of them are there.
            other: makes host tensors that are then converted.
        """
        self._placement = placement
        self._backend = backend
        self._other = other

    def allocate(self, batch: Batch, stop: Stop) -> Target | None:
        """See `Sink.allocate`."""
        names = [item.info.name for item in batch.items]
        if names[0] in self._placement.views:
            return Target(views=[self._placement.views[name] for name in names])
        if names[0] in self._placement.buffers:
            return Target(places=[(self._placement.buffers[name], 0) for name in names])
        return self._other.allocate(batch, stop)

    def make_tensors(self, batch: Batch, target: Target) -> list[tuple[str, Any]]:
        """See `Sink.make_tensors`."""
        names = [item.info.name for item in batch.items]
        if target.block is not None:
            for name, tensor in self._other.make_tensors(batch, target):
                _convert(self._placement.targets[name], tensor)
        if target.places:
            assert self._backend is not None
            self._backend.ready([buffer for buffer, _ in target.places], target.events)
        return [(name, self._placement.targets[name]) for name in names]

    def on_next_batch(self) -> None:
        """See `Sink.on_next_batch`."""
        self._other.on_next_batch()

    def close(self) -> None:
        """See `Sink.close`."""
        self._other.close()


def _convert(target: Any, tensor: Any) -> None:
    if hasattr(target, "data_ptr"):
        target.detach().copy_(tensor)
    else:
        target[...] = tensor
