"""Damaged models, odd arguments, interrupts: one of our errors or the right bytes, nothing left behind."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import p2pcache
from p2pcache.errors import (
    InvalidHeader,
    P2PCacheError,
    TimedOut,
    UsageError,
)
from p2pcache.loader import session
from p2pcache.loader.source.directory import DirectorySource
from tests.loader.loader_kit import Spec, reader_threads, soon, torch_bytes, write, write_raw

MiB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    return tmp_path, write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (MiB,)) for i in range(16)])  # fmt: skip


@pytest.mark.parametrize("shape", ["[0,2305843009213693952,2305843009213693952]",
                                   "[2305843009213693952,2305843009213693952,0]"])  # fmt: skip
@pytest.mark.parametrize("framework", ["pt", "np", "raw"])
def test_an_empty_tensor_with_a_shape_beyond_64_bits_is_refused(
    tmp_path: Path, shape: str, framework: Any
) -> None:
    path = write_raw(
        tmp_path / "m.safetensors", f'{{"a":{{"dtype":"U8","shape":{shape},"data_offsets":[0,0]}}}}'
    )
    with pytest.raises(InvalidHeader, match="count"):
        p2pcache.load(path, framework=framework)


def test_a_tensor_name_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    entry = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    path = write_raw(tmp_path / "m.safetensors", f'{{"\\ud800":{entry}}}', b"x")
    with pytest.raises(InvalidHeader, match="Unicode"):
        p2pcache.load(path)


def test_messages_stay_one_line_whatever_a_tensor_is_called(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, [Spec("a\nERROR\x1b[31m", "U8", (1,))])
    axis = p2pcache.ParallelAxis("tensor", 0, 2, 5)
    calls: list[Callable[[], Any]] = [
        lambda: p2pcache.load(path, parallel=[axis]),
        lambda: p2pcache.load_into({}, path),
        lambda: p2pcache.load_into({"a\nERROR\x1b[31m": torch.zeros(7)}, path),
    ]
    for call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("limit", ["900GiB", 1 << 70])
def test_a_memory_limit_beyond_the_machines_memory(
    model: tuple[Path, dict[str, bytes]], limit: int | str
) -> None:
    folder, body = model
    found = p2pcache.load(folder, memory_limit=limit)
    assert {name: torch_bytes(t) for name, t in found.items()} == body
    targets = {name: torch.zeros(MiB, dtype=torch.int16) for name in body}
    p2pcache.load_into(targets, folder, memory_limit=limit)


@pytest.mark.parametrize("arguments", [
    {"memory_limit": []}, {"memory_limit": float("nan")}, {"stage": (1,)}, {"stage": "ab"},
    {"device": "nonsense"}, {"device": None}, {"device": "meta"},
])  # fmt: skip
def test_impossible_arguments_are_refused(
    model: tuple[Path, dict[str, bytes]], arguments: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        p2pcache.load(model[0], **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_open_model_refuses_a_device_at_once(model: tuple[Path, dict[str, bytes]]) -> None:
    for device in ("cuda", "nonsense"):
        with pytest.raises(UsageError, match="device"):
            p2pcache.safe_open(model[0], device=device)


def test_cpu_has_several_names(model: tuple[Path, dict[str, bytes]]) -> None:
    names: list[Any] = ["cpu:0", torch.device("cpu")]
    for device in names:
        found = p2pcache.load(model[0], device=device, filter="t1")
        assert torch_bytes(found["t1"]) == model[1]["t1"]


def test_a_closed_model_refuses_reads(model: tuple[Path, dict[str, bytes]]) -> None:
    opened = p2pcache.safe_open(model[0])
    part = opened.get_slice("t1")
    opened.close()
    opened.close()
    asks: list[Callable[[], Any]] = [lambda: opened.get_tensor("t1"), lambda: part[0:1]]
    for ask in asks:
        with pytest.raises(UsageError, match="closed"):
            ask()
    stream = p2pcache.iter_tensors(model[0])
    stream.close()
    stream.close()
    assert list(stream) == []


def test_an_open_model_that_is_dropped_leaves_no_descriptor(
    model: tuple[Path, dict[str, bytes]],
) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        p2pcache.safe_open(model[0]).get_tensor("t1")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_during_a_load_can_drop_it(model: tuple[Path, dict[str, bytes]]) -> None:
    folder, body = model
    stream = p2pcache.iter_tensors(folder, memory_limit="2MiB")
    found = dict([next(stream)])
    child = os.fork()
    if child == 0:  # a worker that inherits the stream, and drops it
        signal.alarm(20)
        del stream
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    found.update(stream)
    assert {name: torch_bytes(t) for name, t in found.items()} == body


def test_an_interrupt_leaves_no_thread(model: tuple[Path, dict[str, bytes]]) -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with soon(), pytest.raises(KeyboardInterrupt):  # noqa: PT012
            with p2pcache.iter_tensors(model[0], memory_limit="1MiB") as stream:
                for _ in stream:
                    time.sleep(0.03)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert reader_threads() == []


class StuckSource(DirectorySource):
    """Bytes that were there and are withdrawn while they are read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.over = threading.Event()

    def read(self, path: str, start: int, into: Sequence[memoryview]) -> None:
        if sum(map(len, into)) < MiB:
            super().read(path, start, into)
        else:
            self.over.wait()
            raise P2PCacheError("closed")

    def stop(self) -> None:
        self.over.set()


@pytest.fixture
def stuck(
    model: tuple[Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[StuckSource]:
    source = StuckSource(model[0])
    monkeypatch.setattr(session, "open_source", lambda *_, **__: source)
    yield source
    source.over.set()


def test_a_stuck_read_does_not_delay_close(stuck: StuckSource) -> None:
    stream = p2pcache.iter_tensors("m")
    with soon():
        stream.close()
    assert reader_threads() == []


def test_the_time_limit_covers_a_stuck_read(stuck: StuckSource) -> None:
    with soon(), pytest.raises(TimedOut):
        p2pcache.load("m", timeout_s=0.2)


def test_an_open_model_can_be_closed_during_a_read(stuck: StuckSource) -> None:
    opened = p2pcache.safe_open("m")
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            opened.get_tensor("t1")
        except P2PCacheError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.05)
    with soon():
        opened.close()
        thread.join()
    assert len(errors) == 1


def test_the_time_limit_covers_an_agent_that_never_answers(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "a.sock"))
        silent.listen()
        with soon(), pytest.raises(TimedOut):
            p2pcache.load("team/m:v1", agent=f"unix://{tmp_path}/a.sock", timeout_s=0.3)
