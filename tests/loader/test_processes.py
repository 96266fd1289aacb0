"""Loads beside forks and threads, such as those of a DataLoader or a watchdog."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import p2pcache
from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.ids import Ref
from p2pcache.loader import session
from p2pcache.loader.plan.batches import READ_BYTES
from p2pcache.loader.source.agent_source import AgentSource
from tests.loader.loader_kit import SlowSource, Spec, reader_threads, soon, torch_bytes, write

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
SPECS = [*(Spec(f"t{i}", "U8", (1 << 20,)) for i in range(8)), Spec("big", "U8", (READ_BYTES + 1,))]
Body = dict[str, bytes]


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, Body]:
    return tmp_path, write(tmp_path / "m.safetensors", SPECS)


@pytest.fixture
def late(model: tuple[Path, Body], monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowSource]:
    """A model of which only the header is there."""
    source = SlowSource(model[0])
    source.arrive("m.safetensors", 0, 2000)
    monkeypatch.setattr(session, "open_source", lambda *_, **__: source)
    yield source
    source.fail(P2PCacheError("over"))


def in_a_fork(work: Callable[[], bool]) -> bool:
    """Whether `work` returns true in a forked child; false if it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(45)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def test_an_open_directory_is_usable_in_a_fork(model: tuple[Path, Body]) -> None:
    folder, body = model
    with p2pcache.safe_open(folder) as opened:
        opened.get_tensor("big")  # by threads, which a child hasn't

        def read_and_close() -> bool:
            right = all(torch_bytes(opened.get_tensor(name)) == body[name] for name in body)
            opened.close()
            return right

        assert in_a_fork(read_and_close)
        assert torch_bytes(opened.get_tensor("big")) == body["big"]


def test_a_fork_during_a_read_may_only_close(late: SlowSource, model: tuple[Path, Body]) -> None:
    """Held locks and the count of calls are the parent's; the child may close its copy."""
    opened = p2pcache.safe_open("m")
    reader = threading.Thread(target=lambda: opened.get_tensor("t1"))
    reader.start()
    while not late.waits:
        time.sleep(0.01)

    def refused_and_closed() -> bool:
        with pytest.raises(UsageError, match="forked"):
            opened.get_tensor("t0")
        opened.close()
        return True

    assert in_a_fork(refused_and_closed)
    late.arrive("m.safetensors", 0, 1 << 40)
    reader.join()
    opened.close()


def test_a_fork_that_inherits_a_held_lock_can_close() -> None:
    source = AgentSource(Ref.parse("team/m:v1"), None, "", needed=False)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with source._changed:
            held.set()
            over.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def closed() -> bool:
        source.close()
        return True

    assert in_a_fork(closed)
    over.set()
    thread.join()
    source.close()


def test_a_load_does_not_go_on_in_a_fork(model: tuple[Path, Body]) -> None:
    folder, body = model
    stream = p2pcache.iter_tensors(folder, memory_limit="2MiB")
    found = dict([next(stream)])

    def refused() -> bool:
        with pytest.raises(UsageError, match="fork"):
            list(stream)
        return True

    assert in_a_fork(refused)
    found.update(stream)
    assert {name: torch_bytes(t) for name, t in found.items()} == body


def test_threads_share_an_iterator(model: tuple[Path, Body]) -> None:
    folder, body = model
    stream = p2pcache.iter_tensors(folder, memory_limit="1MiB")
    found: dict[str, torch.Tensor] = {}
    threads = [threading.Thread(target=lambda: found.update(stream)) for _ in range(4)]
    with soon():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {name: torch_bytes(t) for name, t in found.items()} == body


def test_closing_a_load_is_an_error_for_its_consumer(late: SlowSource) -> None:
    """A watchdog's close is an error for the consumer, since an end would look like a whole model."""
    stream = p2pcache.iter_tensors("m")
    errors: list[BaseException] = []

    def take() -> None:
        try:
            list(stream)
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    while not late.waits:
        time.sleep(0.01)
    with soon():
        stream.close()
        thread.join()
    assert "closed" in str(errors[0])
    assert reader_threads() == []
