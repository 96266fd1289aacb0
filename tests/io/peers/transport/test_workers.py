"""Worker threads and receive buffers of the data plane."""

import gc
import threading
import weakref

from p2pcache.io.peers.transport.workers import SlicePool, Workers


class Job:
    def __init__(self) -> None:
        self.done = threading.Event()

    def __call__(self) -> None:
        self.done.set()


def test_an_idle_worker_holds_nothing_of_its_last_job() -> None:
    """It would keep the last file of a pull open, and so its space after `rm`."""
    workers = Workers(1, "test")
    job = Job()
    gone = threading.Event()
    weakref.finalize(job, gone.set)
    workers.submit(job)
    assert job.done.wait(30)
    del job
    gc.collect()
    assert gone.wait(30)
    workers.stop()


def test_a_slice_comes_back_after_its_last_holder() -> None:
    pool = SlicePool(2)
    first = pool.take()
    first.hold()
    first.release()
    assert not first.shared
    assert pool.take() is not first
    first.release()
    assert pool.take() is first
    assert pool.made == 2
