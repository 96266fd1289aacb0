"""The CUDA backend's own lines without a GPU: `torch.cuda` is a stand-in that writes down what is asked of it.

It proves the order of calls, on which the memory's safety stands, and nothing about a device; that is test_gpu.py's.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import p2pcache
from p2pcache.errors import NoSpace, P2PCacheError
from p2pcache.loader.format.dtypes import BITS, torch_dtype
from p2pcache.loader.memory.backend import CudaBackend
from p2pcache.loader.stream import Tuning
from tests.loader.loader_kit import Spec, torch_bytes, write

SPECS = [Spec("a", "BF16", (300, 7)), Spec("z", "F16", (0, 3)), Spec("s", "I64", ()),
         *(Spec(f"b{i}", "U8", (1 << 20,)) for i in range(6))]  # fmt: skip


class Stream:
    """Says what waits for what, and what runs on it."""

    def __init__(self, cuda: "Cuda", name: str) -> None:
        self.device = torch.device("cpu")  # where the stand-in's tensors lie
        self.name = name
        self._cuda = cuda

    def wait_stream(self, other: "Stream") -> None:
        self._cuda.said.append(("wait_stream", self.name, other.name))

    def wait_event(self, event: "Event") -> None:
        assert event.on is not None, "waited for before it was recorded"
        self._cuda.said.append(("wait_event", self.name, event.on))


class Event:
    """Remembers the stream."""

    def __init__(self, cuda: "Cuda", *, blocking: bool = False) -> None:
        self.on: str | None = None
        self._cuda = cuda
        self._kind = "record" if blocking else "record for the consumer"

    def record(self, stream: Stream) -> None:
        self._cuda.check_thread()
        self.on = stream.name
        self._cuda.said.append((self._kind, stream.name, threading.get_ident()))

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        if self._cuda.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore lines")


class Cuda:
    """As much of `torch.cuda` as the backend uses."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.broken = False
        self.refuses = 0
        self.pinned: dict[int, int] = {}
        self.current = self.home = Stream(self, "home")
        self.threads = {threading.main_thread().ident}  # a consumer's device is its own business
        self._made = 0

    def new(self, *_: Any) -> Stream:
        self._made += 1
        return Stream(self, f"copy{self._made}")

    def set_device(self, device: torch.device) -> None:
        self.threads.add(threading.get_ident())

    def set_stream(self, stream: Stream) -> None:
        self.check_thread()
        self.said.append(("on", stream.name, threading.get_ident()))

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        assert address not in self.pinned
        if not self.refuses:
            self.pinned[address] = nbytes
        return self.refuses

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.pinned[address]
        return 0

    def check_error(self, code: int) -> None:
        if code:
            raise RuntimeError(f"CUDA error: {code}\nmore lines")

    def check_thread(self) -> None:
        assert threading.get_ident() in self.threads, "this thread makes a context on GPU 0"

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self.check_thread()
        self.said.append(("on", stream.name, threading.get_ident()))
        yield


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    for name, stands_in in {
        "is_available": lambda: True, "device_count": lambda: 1, "Stream": made.new,
        "current_stream": lambda *_: made.current, "stream": made.on,
        "Event": lambda **more: Event(made, **more), "set_device": made.set_device, "set_stream": made.set_stream,
        "cudart": lambda: made, "check_error": made.check_error,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stands_in)
    monkeypatch.setattr(torch.Tensor, "record_stream",
                        lambda _, stream: made.said.append(("record_stream", stream.name)))  # fmt: skip
    return made


@pytest.mark.parametrize("limit", ["1MiB", "3MB", "256MiB"])
@pytest.mark.parametrize("streams", [1, 2])
def test_all_bytes_come_and_all_copies_are_waited_for(
    cuda: Cuda, tmp_path: Path, limit: str, streams: int
) -> None:
    body = write(tmp_path / "m.safetensors", SPECS, pad=3)
    tuning = Tuning(threads=3, copy_streams=streams)
    found = p2pcache.iter_tensors(tmp_path, device="cuda", memory_limit=limit, tuning=tuning)
    assert {name: torch_bytes(t) for name, t in found} == body
    waited = [said for said in cuda.said if said[0] == "wait_event"]
    recorded = [said[1] for said in cuda.said if said[0] == "record for the consumer"]
    assert sorted(said[2] for said in waited) == sorted(recorded)
    assert {said[1] for said in waited} == {"home"}
    assert set(recorded) == {f"copy{i + 1}" for i in range(streams)}
    del found
    gc.collect()
    assert not cuda.pinned
    for thread in {said[2] for said in cuda.said if said[0] == "record"}:
        mine = [s[:2] for s in cuda.said if s[2:] == (thread,) and s[0] in ("on", "record")]
        assert len({stream for _, stream in mine}) == 1, (
            "an event on another stream than the copies"
        )


def test_every_dtype_of_torch_reaches_the_device(cuda: Cuda, tmp_path: Path) -> None:
    known = [dtype for dtype in sorted(BITS) if not dtype.startswith("F6")]
    specs = [
        Spec(f"{dtype} {shape}", dtype, shape) for dtype in known for shape in [(3, 8), (0, 8)]
    ]
    body = write(tmp_path / "m.safetensors", specs, pad=1)
    found = p2pcache.load(tmp_path, device="cuda")
    assert {name: torch_bytes(t) for name, t in found.items()} == body
    assert [found[spec.name].dtype for spec in specs] == [torch_dtype(spec.dtype) for spec in specs]


def test_the_ring_ignores_the_callers_default_device(cuda: Cuda, tmp_path: Path) -> None:
    """`with torch.device("cuda")` around a load, as engines have it: only memory of the host can be pinned."""
    body = write(tmp_path / "m.safetensors", SPECS)
    with torch.device("meta"):
        found = p2pcache.load(tmp_path, device="cuda")
    assert {name: torch_bytes(t) for name, t in found.items()} == body


def test_a_buffer_is_safe_before_its_first_copy(cuda: Cuda) -> None:
    """It is made on the copy stream, whose order is enough; no copy waits for the consumer's stream."""
    backend = CudaBackend("cuda", 2)
    backend.alloc_device(64)
    assert cuda.said[0][:2] == ("on", "copy1")
    assert cuda.said[1:] == [("wait_stream", "copy2", "copy1"), ("record_stream", "copy2")]


def test_copies_into_the_callers_tensors_wait_for_its_past_use_of_them_once(cuda: Cuda) -> None:
    CudaBackend("cuda", 2).adopt([torch.zeros(3), torch.zeros(4)])
    assert cuda.said == [
        ("wait_stream", "copy1", "home"), ("record_stream", "copy1"), ("record_stream", "copy1"),
        ("wait_stream", "copy2", "home"), ("record_stream", "copy2"), ("record_stream", "copy2"),
    ]  # fmt: skip


def test_the_stream_of_the_consumer_waits_for_copies(cuda: Cuda) -> None:
    backend = CudaBackend("cuda")
    buffer, slot = backend.alloc_device(64), backend.alloc_host(64)
    backend.copy(slot, 0, 64, buffer, 0)
    event = backend.record()
    cuda.current = Stream(cuda, "mine")
    cuda.said.clear()
    backend.ready([buffer], [event])
    assert cuda.said == [("wait_event", "mine", "copy1"), ("record_stream", "mine")]


def test_errors_of_the_device_are_translated(
    cuda: Cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m.safetensors", SPECS)
    cuda.broken = True
    with pytest.raises(P2PCacheError, match=r"illegal memory access was encountered; a process"):
        p2pcache.load(tmp_path, device="cuda")

    def full(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB\nmore")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(NoSpace, match=r"has no room for .*Tried to allocate 20 MiB$"):
        p2pcache.load(tmp_path, device="cuda")
    cuda.refuses = 2
    asked: list[object] = []

    def ones(*_: object, **more: object) -> torch.Tensor:
        asked.append(more["device"])
        return torch.tensor([1])

    monkeypatch.setattr(torch, "ones", ones)
    with pytest.raises(NoSpace, match=r"can't pin .* CUDA error: 2; raise the limit of locked"):
        p2pcache.load(tmp_path, device="cuda")
    assert asked, "the refusal is left for the next call of anybody"
