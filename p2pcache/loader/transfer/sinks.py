"""Where a batch's bytes are put, and what is made of them: host tensors, device tensors, the caller's own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

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
    """Memory for one batch: each tensor's bytes on the host, or each one's place on a device."""

    views: list[memoryview] = field(default_factory=list)
    places: list[tuple[Any, int]] = field(default_factory=list)  # (device buffer, offset)
    block: Block | None = None
    events: list[Any] = field(default_factory=list)  # of the copies to the device


class Sink(Protocol):
    """Gives memory for batches and makes tensors of full ones."""

    def open(self, batch: Batch, stop: Stop) -> Target | None:
        """Memory for a batch, as soon as the limit allows it; None once `stop()` is true."""
        ...

    def finish(self, batch: Batch, target: Target) -> list[tuple[str, Any]]:
        """The tensors, in the consumer's thread, when all bytes are read."""
        ...

    def turn(self) -> None:
        """The consumer asks for the next batch: what was only lent to it comes back."""
        ...

    def close(self) -> None:
        """The load is over, and nobody reads any more; what was handed out stays."""
        ...


class HostSink:
    """New tensors in host memory."""

    def __init__(self, pool: HostPool, framework: Framework, *, owned: bool) -> None:
        """Choose the kind of tensors.

        Args:
            pool: where memory comes from.
            framework: of the tensors.
            owned: False: a batch's tensors are valid only until the next batch is finished.
        """
        self._pool = pool
        self._framework = framework
        self._owned = owned
        self._lent: Block | None = None

    def open(self, batch: Batch, stop: Stop) -> Target | None:
        """See `Sink.open`."""
        block = self._pool.alloc(batch.nbytes, stop)
        if block is None:
            return None
        views = [
            block.view[offset : offset + want.nbytes]
            for want, offset in zip(batch.wants, batch.offsets, strict=True)
        ]
        return Target(views=views, block=block)

    def finish(self, batch: Batch, target: Target) -> list[tuple[str, Any]]:
        """See `Sink.finish`."""
        block, target.block = target.block, None
        assert block is not None
        target.views.clear()
        made = [
            (w.info.name, wrap(block.owner, o, w.nbytes, w.info.dtype, w.shape, self._framework))
            for w, o in zip(batch.wants, batch.offsets, strict=True)
        ]
        if self._owned:
            self._pool.hand_over(block)
        else:
            self._lent = block
        return made

    def turn(self) -> None:
        """See `Sink.turn`."""
        self._pool.turn()
        if self._lent is not None:
            self._pool.recycle(self._lent)
            self._lent = None

    def close(self) -> None:
        """See `Sink.close`."""
        self.turn()
        self._pool.close()


class DeviceSink:
    """New tensors in a device's memory, by way of a ring."""

    def __init__(self, backend: Backend, budget: Budget) -> None:
        """Choose the device.

        Args:
            backend: the device.
            budget: bounds the device memory that nobody has taken yet.
        """
        self._backend = backend
        self._budget = budget

    def open(self, batch: Batch, stop: Stop) -> Target | None:
        """See `Sink.open`."""
        if not self._budget.acquire(batch.nbytes, stop):
            return None
        buffer = self._backend.alloc_device(batch.nbytes)
        return Target(places=[(buffer, offset) for offset in batch.offsets])

    def finish(self, batch: Batch, target: Target) -> list[tuple[str, Any]]:
        """See `Sink.finish`."""
        self._budget.release(batch.nbytes)
        buffer = target.places[0][0]
        self._backend.ready(buffer, target.events)
        return [
            (w.info.name, self._backend.tensor(buffer, o, w.nbytes, w.info.dtype, w.shape))
            for w, o in zip(batch.wants, batch.offsets, strict=True)
        ]

    def turn(self) -> None:
        """See `Sink.turn`: device tensors are always owned."""

    def close(self) -> None:
        """See `Sink.close`: a tensor that nobody took goes with its last reference."""


class IntoSink:
    """The caller's own tensors: straight in where their bytes allow it, by a copy where not."""

    def __init__(self, placement: Placement, backend: Backend | None, other: HostSink) -> None:
        """Say how each tensor is reached. A batch holds tensors of one kind only.

        Args:
            placement: the caller's tensors.
            backend: of the device, if some are there.
            other: reads those that are then converted.
        """
        self._place = placement
        self._backend = backend
        self._other = other

    def open(self, batch: Batch, stop: Stop) -> Target | None:
        """See `Sink.open`."""
        names = [want.info.name for want in batch.wants]
        if names[0] in self._place.views:
            return Target(views=[self._place.views[name] for name in names])
        if names[0] in self._place.buffers:
            return Target(places=[(self._place.buffers[name], 0) for name in names])
        return self._other.open(batch, stop)

    def finish(self, batch: Batch, target: Target) -> list[tuple[str, Any]]:
        """See `Sink.finish`."""
        names = [want.info.name for want in batch.wants]
        if target.block is not None:
            for name, tensor in self._other.finish(batch, target):
                _convert(self._place.targets[name], tensor)
        for buffer, _ in target.places:
            assert self._backend is not None
            self._backend.ready(buffer, target.events)
        return [(name, self._place.targets[name]) for name in names]

    def turn(self) -> None:
        """See `Sink.turn`."""
        self._other.turn()

    def close(self) -> None:
        """See `Sink.close`."""
        self._other.close()


def _convert(target: Any, tensor: Any) -> None:
    if hasattr(target, "data_ptr"):
        target.detach().copy_(tensor)
    else:
        target[...] = tensor
