"""A device, reached by asynchronous copies from pinned host memory.

A ring slot may be written again, and a device buffer read, only after the event of its last copy.
`ring.Ring` waits for the first, `Backend.ready` orders the second.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from p2pcache.errors import NoSpace, P2PCacheError, UsageError
from p2pcache.loader.format.dtypes import import_torch, native_shape, torch_dtype
from p2pcache.loader.memory.arena import pages

_HOST_TO_DEVICE = 1  # cudaMemcpyHostToDevice
# Where NVIDIA's driver and AMD's show themselves.
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/kfd"))


class HostMemory(NamedTuple):
    """Host memory from which a device copies."""

    view: memoryview
    handle: Any  # the backend's own object for it


class Backend(Protocol):
    """A device. The load's own threads call these methods; the consumer's thread calls `ready`."""

    def enter(self) -> None:
        """Prepare the calling thread; called once in each thread of the load, first."""
        ...

    def alloc_host(self, nbytes: int) -> HostMemory:
        """Allocate host memory for a ring slot, pinned where the device needs it.

        It is unpinned when its last reference goes, so no copy from it may run then.
        """
        ...

    def alloc_device(self, nbytes: int) -> Any:
        """Allocate a device buffer, aligned to 256 bytes."""
        ...

    def copy(self, source: HostMemory, start: int, length: int, buffer: Any, offset: int) -> None:
        """Begin to copy source[start:start+length] to buffer[offset:]; returns before it is done."""
        ...

    def copy_rows(
        self, source: HostMemory, length: int, stride: int, count: int, buffer: Any, offset: int
    ) -> None:
        """Begin to copy equal rows, one behind another, to buffer[offset:].

        Args:
            source: begins with the first row.
            length: of each row, in bytes.
            stride: bytes from the start of one row to the start of the next.
            count: of rows.
            buffer: on the device.
            offset: in it.
        """
        ...

    def record(self) -> Any:
        """Record an event that comes when all copies begun by this thread are done."""
        ...

    def record_all(self) -> list[Any]:
        """Record events that come when all copies begun so far, by any thread, are done."""
        ...

    def done(self, event: Any) -> bool:
        """Whether the event has come."""
        ...

    def sync(self, event: Any) -> None:
        """Block until the event has come."""
        ...

    def ready(self, buffers: Iterable[Any], events: list[Any]) -> None:
        """Order the consumer's next use of the buffers after these events."""
        ...

    def tensor(
        self, buffer: Any, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]
    ) -> Any:
        """Make a tensor over a part of a device buffer, which it keeps alive.

        Args:
            buffer: the device buffer.
            offset: of the tensor in it, in bytes.
            nbytes: of the tensor.
            dtype: safetensors' word.
            shape: in elements.
        """
        ...


class CudaBackend:
    """CUDA, and other devices behind torch.cuda such as ROCm's, through torch alone."""

    def __init__(self, device: str, copy_streams: int = 1) -> None:
        """Choose the device.

        Args:
            device: torch's word: "cuda", "cuda:1".
            copy_streams: each keeps one copy engine busy; more than two bring nothing.

        Raises:
            UsageError: torch can't use such a device here.
            P2PCacheError: the device failed.
        """
        self._torch = torch = import_torch()
        chosen = cuda_device(device)
        with _errors_of(chosen):
            self._home = torch.cuda.current_stream(chosen)
            # "cuda" means the current device of a thread, so other threads need its number.
            self._device = self._home.device
            self._streams = [torch.cuda.Stream(self._device) for _ in range(copy_streams)]
        self._thread = threading.local()  # `stream`: the thread's copy stream
        self._threads_seen = 0
        self._copy_2d = _copier_2d(torch.version.cuda)

    def enter(self) -> None:
        """See `Backend.enter`. Without it a thread makes a context on GPU 0, which takes memory there."""
        with _errors_of(self._device):
            self._torch.cuda.set_device(self._device)
            self._torch.cuda.set_stream(self._stream())

    def alloc_host(self, nbytes: int) -> HostMemory:
        """See `Backend.alloc_host`."""
        cuda = self._torch.cuda
        memory = pages(nbytes)
        flat = self._torch.frombuffer(memory, dtype=self._torch.uint8)
        try:
            # Torch's own pinned memory takes several times as long to make, and is never given back.
            cuda.check_error(int(cuda.cudart().cudaHostRegister(flat.data_ptr(), nbytes, 0)))
        except RuntimeError as error:  # CUDA's errors are RuntimeErrors
            # Otherwise the refusal is raised again, by the next call of anybody.
            with suppress(RuntimeError):
                self._torch.ones(1, device=self._device).add(1)
            raise NoSpace(
                f"can't pin {nbytes} bytes of host memory: {_first_line(error)}; raise the limit of "
                "locked memory or lower memory_limit"
            ) from error
        # Before the memory goes: at an address that is still pinned nobody could pin anything again.
        unpin = weakref.finalize(flat, cuda.cudart().cudaHostUnregister, flat.data_ptr())
        unpin.atexit = False
        return HostMemory(memoryview(memory), flat)

    def alloc_device(self, nbytes: int) -> Any:
        """See `Backend.alloc_device`.

        The memory belongs to the copy stream: what that used before is done when its next copy begins,
        and what the consumer used before, `ready` has told the allocator of. So no copy waits for a consumer.
        """
        torch = self._torch
        first, *others = self._streams
        try:
            with torch.cuda.stream(first):
                buffer = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
            for stream in others:
                stream.wait_stream(first)
                buffer.record_stream(stream)
        except torch.cuda.OutOfMemoryError as error:
            raise NoSpace(
                f"{self._device} has no room for {nbytes} bytes more: {_first_line(error)}"
            ) from error
        except RuntimeError as error:
            raise _failed(self._device, error) from error
        return buffer

    def adopt(self, buffers: Iterable[Any]) -> None:
        """Order copies into the caller's buffers after its past use of them, and their reuse after the copies."""
        with _errors_of(self._device):
            for stream in self._streams:
                stream.wait_stream(self._home)
                for buffer in buffers:
                    buffer.record_stream(stream)

    def _stream(self) -> Any:
        found = getattr(self._thread, "stream", None)
        if found is None:
            found = self._streams[self._threads_seen % len(self._streams)]
            self._thread.stream = found
            self._threads_seen += 1
        return found

    def copy(self, source: HostMemory, start: int, length: int, buffer: Any, offset: int) -> None:
        """See `Backend.copy`. The buffer must be on this device: copies to another use that one's streams."""
        with _errors_of(self._device):  # on the thread's stream: see `enter`
            buffer[offset : offset + length].copy_(
                source.handle[start : start + length], non_blocking=True
            )

    def copy_rows(
        self, source: HostMemory, length: int, stride: int, count: int, buffer: Any, offset: int
    ) -> None:
        """See `Backend.copy_rows`. Without CUDA's own call torch gathers the rows on the host first."""
        with _errors_of(self._device):
            if self._copy_2d is not None:
                failed = self._copy_2d(
                    buffer.data_ptr() + offset, length, source.handle.data_ptr(), stride, length, count,
                    _HOST_TO_DEVICE, self._stream().cuda_stream,
                )  # fmt: skip
                self._torch.cuda.check_error(int(failed))
                return
            strided = source.handle.as_strided((count, length), (stride, 1))
            target = buffer[offset : offset + count * length].view(count, length)
            target.copy_(strided, non_blocking=True)

    def record(self) -> Any:
        """See `Backend.record`."""
        with _errors_of(self._device):
            event = self._torch.cuda.Event(blocking=True)  # otherwise waiting readers spin
            event.record(self._stream())
        return event

    def record_all(self) -> list[Any]:
        """See `Backend.record_all`."""
        found = []
        with _errors_of(self._device):
            for stream in self._streams:
                event = self._torch.cuda.Event()
                event.record(stream)
                found.append(event)
        return found

    def done(self, event: Any) -> bool:
        """See `Backend.done`."""
        with _errors_of(self._device):
            return bool(event.query())

    def sync(self, event: Any) -> None:
        """See `Backend.sync`."""
        with _errors_of(self._device):
            event.synchronize()

    def ready(self, buffers: Iterable[Any], events: list[Any]) -> None:
        """See `Backend.ready`: the current stream of the consumer's thread waits."""
        with _errors_of(self._device):
            stream = self._torch.cuda.current_stream(self._device)
            for event in events:
                stream.wait_event(event)
            for buffer in buffers:
                buffer.record_stream(stream)

    def tensor(
        self, buffer: Any, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]
    ) -> Any:
        """See `Backend.tensor`."""
        flat = buffer[offset : offset + nbytes]
        return flat.view(torch_dtype(dtype)).reshape(native_shape(dtype, shape, "pt"))


def _copier_2d(cuda: str | None) -> Any:
    """CUDA's `cudaMemcpy2DAsync`, which torch doesn't offer; None: there is none here, as on AMD's devices."""
    try:
        runtime = ctypes.CDLL(f"libcudart.so.{str(cuda).partition('.')[0]}")
    except OSError:
        return None
    call = runtime.cudaMemcpy2DAsync
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    call.argtypes = [pointer, size, pointer, size, size, size, ctypes.c_int, pointer]
    return call


def known_device(word: str) -> Any:
    """Parse the name of a device into a `torch.device`.

    Raises:
        UsageError: torch is missing or doesn't know the name.
    """
    try:
        return import_torch().device(word)
    except RuntimeError:
        raise UsageError(f"device {word!r}: torch doesn't know it") from None


def cuda_device(word: str) -> Any:
    """Parse the name of a GPU into a `torch.device`.

    Raises:
        UsageError: it names no GPU, or none that can be used here.
    """
    found, cuda = known_device(word), import_torch().cuda
    if found.type != "cuda" or not cuda.is_available():
        why = _no_gpu() if found.type == "cuda" else "it is no GPU that torch.cuda knows"
        raise UsageError(f"device {word!r} can't be used here: {why}; or use device='cpu'")
    if (found.index or 0) >= cuda.device_count():
        raise UsageError(f"device {word!r}: torch sees {cuda.device_count()} GPUs here")
    return found


def _no_gpu() -> str:
    """Why torch sees no GPU, and what to do."""
    version, hidden = import_torch().version, os.environ.get("CUDA_VISIBLE_DEVICES")
    if version.cuda is None and version.hip is None:
        return "this torch is built for CPUs; install one that is built for GPUs"
    if hidden is not None and hidden.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={hidden!r} hides all GPUs; unset it"
    if not any(path.exists() for path in _DRIVERS):
        return "no driver of a GPU is loaded; install it, or give the container a GPU"
    if hidden is not None:
        return f"CUDA_VISIBLE_DEVICES={hidden!r} leaves no GPU; unset it, or name one that is here"
    return "torch finds no GPU though there is a driver; nvidia-smi or rocminfo says more"


def to_device(tensor: Any, word: str) -> Any:
    """Copy a host tensor to a device; the copy is done when this returns.

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
    """Translate CUDA's errors, any of which may come from an earlier call."""
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
