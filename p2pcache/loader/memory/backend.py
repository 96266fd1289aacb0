"""Where tensors end: host memory, or a device that is reached through pinned host memory.

A staged backend's copies are asynchronous: a ring slot may be written again, and a device buffer
read, only after the event of its last copy. `ring.Ring` sees to the first, `ready` to the second.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from p2pcache.errors import NoSpace, P2PCacheError, UsageError
from p2pcache.loader.format.dtypes import import_torch, native_shape, torch_dtype


class HostMemory(NamedTuple):
    """Memory that copies to a device start from."""

    view: memoryview
    handle: Any  # the backend's own


class Backend(Protocol):
    """A device. Methods are called from the load's own threads, `ready` from the consumer's."""

    def enter(self) -> None:
        """Called once in each thread of the load, before anything else there."""
        ...

    def alloc_host(self, nbytes: int) -> HostMemory:
        """Host memory for a ring slot, pinned where that makes sense."""
        ...

    def alloc_device(self, nbytes: int) -> Any:
        """A device buffer, aligned to 256 bytes."""
        ...

    def copy(self, source: HostMemory, start: int, length: int, buffer: Any, offset: int) -> None:
        """Begin to copy source[start:start+length] to buffer[offset:]; returns before it's done."""
        ...

    def record(self) -> Any:
        """An event that comes when all copies that this thread began are done."""
        ...

    def done(self, event: Any) -> bool:
        """Whether the event has come."""
        ...

    def sync(self, event: Any) -> None:
        """Block until the event has come."""
        ...

    def ready(self, buffer: Any, events: list[Any]) -> None:
        """Let the consumer's next use of the buffer come after these events."""
        ...

    def tensor(
        self, buffer: Any, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]
    ) -> Any:
        """A tensor over a part of a device buffer; it keeps the buffer alive."""
        ...


class CudaBackend:
    """CUDA (and whatever else speaks torch.cuda, as ROCm does), through torch alone."""

    def __init__(self, device: str, copy_streams: int = 1) -> None:
        """Choose the device.

        Args:
            device: torch's word: "cuda", "cuda:1".
            copy_streams: one keeps one copy engine busy; more than two bring nothing.

        Raises:
            UsageError: torch can't use such a device here.
            P2PCacheError: the device failed.
        """
        self._torch = torch = import_torch()
        chosen = cuda_device(device)
        with _errors_of(chosen):
            # what the consumer computes on: its allocations and ours then follow one order
            self._home = torch.cuda.current_stream(chosen)
            # "cuda" is whatever device is current in a thread, so from here on it has its number
            self._device = self._home.device
            self._streams = [torch.cuda.Stream(self._device) for _ in range(copy_streams)]
        self._mine = threading.local()
        self._turn = 0

    def enter(self) -> None:
        """See `Backend.enter`. A new thread is on GPU 0, whose context would take memory there for nothing."""
        with _errors_of(self._device):
            self._torch.cuda.set_device(self._device)

    def alloc_host(self, nbytes: int) -> HostMemory:
        """See `Backend.alloc_host`."""
        torch = self._torch
        try:  # the device said: else a caller's `with torch.device("cuda")` would say another
            memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError as error:  # CUDA's own errors are such, too
            raise NoSpace(
                f"can't pin {nbytes} bytes of host memory: {_first_line(error)}; raise the limit of "
                "locked memory or lower memory_limit"
            ) from error
        return HostMemory(memoryview(memory.numpy()), memory)

    def alloc_device(self, nbytes: int) -> Any:
        """See `Backend.alloc_device`. Copies wait for what the consumer did to this memory before."""
        torch = self._torch
        try:
            with torch.cuda.stream(self._home):
                buffer = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        except torch.cuda.OutOfMemoryError as error:
            raise NoSpace(
                f"{self._device} has no room for {nbytes} bytes more: {_first_line(error)}"
            ) from error
        except RuntimeError as error:
            raise _failed(self._device, error) from error
        self.adopt(buffer)
        return buffer

    def adopt(self, buffer: Any) -> None:
        """Let copies into `buffer` come after the consumer's past use, and its reuse after them."""
        with _errors_of(self._device):
            for stream in self._streams:
                stream.wait_stream(self._home)
                buffer.record_stream(stream)

    def _stream(self) -> Any:
        found = getattr(self._mine, "stream", None)
        if found is None:
            found = self._mine.stream = self._streams[self._turn % len(self._streams)]
            self._turn += 1
        return found

    def copy(self, source: HostMemory, start: int, length: int, buffer: Any, offset: int) -> None:
        """See `Backend.copy`. The buffer is on this device: another one's copies run on its own stream."""
        with _errors_of(self._device), self._torch.cuda.stream(self._stream()):
            buffer[offset : offset + length].copy_(
                source.handle[start : start + length], non_blocking=True
            )

    def record(self) -> Any:
        """See `Backend.record`."""
        with _errors_of(self._device):
            event = self._torch.cuda.Event(
                blocking=True
            )  # else eight readers would spin for the bus
            event.record(self._stream())
        return event

    def done(self, event: Any) -> bool:
        """See `Backend.done`."""
        with _errors_of(self._device):
            return bool(event.query())

    def sync(self, event: Any) -> None:
        """See `Backend.sync`."""
        with _errors_of(self._device):
            event.synchronize()

    def ready(self, buffer: Any, events: list[Any]) -> None:
        """See `Backend.ready`: the stream that is current in the consumer's thread waits."""
        with _errors_of(self._device):
            stream = self._torch.cuda.current_stream(self._device)
            for event in events:
                stream.wait_event(event)
            if stream != self._home:
                buffer.record_stream(stream)

    def tensor(
        self, buffer: Any, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]
    ) -> Any:
        """See `Backend.tensor`."""
        flat = buffer[offset : offset + nbytes]
        return flat.view(torch_dtype(dtype)).reshape(native_shape(dtype, shape, "pt"))


def known_device(word: str) -> Any:
    """The device as torch has it.

    Raises:
        UsageError: torch is missing or doesn't know it.
    """
    try:
        return import_torch().device(word)
    except RuntimeError:
        raise UsageError(f"device {word!r}: torch doesn't know it") from None


def cuda_device(word: str) -> Any:
    """The GPU as torch has it.

    Raises:
        UsageError: it's none, or none that can be used here.
    """
    found, cuda = known_device(word), import_torch().cuda
    if found.type != "cuda" or not cuda.is_available():
        raise UsageError(f"device {word!r} can't be used here; use device='cpu'")
    if (found.index or 0) >= cuda.device_count():
        raise UsageError(f"device {word!r}: torch sees {cuda.device_count()} GPUs here")
    return found


def to_device(tensor: Any, word: str) -> Any:
    """A host tensor's copy on a device, made when this returns.

    Raises:
        NoSpace: the device has no room for it.
        P2PCacheError: the device failed.
    """
    try:
        return tensor.to(word)
    except import_torch().cuda.OutOfMemoryError as error:
        raise NoSpace(
            f"{word} has no room for {tensor.nbytes} bytes more: {_first_line(error)}"
        ) from error
    except RuntimeError as error:
        raise _failed(word, error) from error


@contextmanager
def _errors_of(device: Any) -> Iterator[None]:
    """CUDA's errors, which come at any later call, in words of ours."""
    try:
        yield
    except RuntimeError as error:
        raise _failed(device, error) from error


def _failed(device: Any, error: RuntimeError) -> P2PCacheError:
    return P2PCacheError(
        f"{device} failed: {_first_line(error)}; a process whose device failed must be started again"
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
