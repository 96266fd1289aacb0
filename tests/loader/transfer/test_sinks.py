"""Memory for batches, and the tensors made of it."""

import torch

from p2pcache.loader.format.header import TensorInfo
from p2pcache.loader.memory.host_pool import Budget, HostPool
from p2pcache.loader.plan.batches import Batch
from p2pcache.loader.plan.selection import whole_tensor
from p2pcache.loader.transfer.sinks import DeviceSink, HostSink
from tests.loader.memory.fake_device import FakeAsyncBackend

LIMIT = 1 << 20


def batch(count: int = 2, nbytes: int = 1000) -> Batch:
    found = Batch([])
    for i in range(count):
        found.add(whole_tensor(TensorInfo(f"t{i}", "U8", (nbytes,), "f", 0, nbytes)))
    return found


def never() -> bool:
    return False


def test_host_tensors_have_the_bytes_of_their_views() -> None:
    sink, wanted = HostSink(HostPool(LIMIT, LIMIT), "pt", owned=True), batch()
    target = sink.allocate(wanted, never)
    assert target is not None
    for value, view in enumerate(target.views):
        view[:] = bytes([value]) * 1000
    made = dict(sink.make_tensors(wanted, target))
    sink.close()
    assert [int(made[f"t{i}"].unique()) for i in range(2)] == [0, 1]


def test_lent_memory_comes_back_with_the_next_batch() -> None:
    pool = HostPool(LIMIT, 4 * LIMIT)
    sink, wanted = HostSink(pool, "pt", owned=False), batch(1, LIMIT)
    target = sink.allocate(wanted, never)
    assert target is not None
    ((_, tensor),) = sink.make_tensors(wanted, target)
    assert sink.allocate(wanted, lambda: True) is None  # the limit holds while it is lent
    sink.on_next_batch()
    again = sink.allocate(wanted, never)
    assert again is not None
    again.views[0][:] = b"\7" * LIMIT
    assert int(tensor[0]) == 7  # the same memory


def test_device_memory_counts_until_it_is_handed_out() -> None:
    budget, wanted = Budget(LIMIT), batch(1, LIMIT)
    sink = DeviceSink(FakeAsyncBackend(), budget)
    target = sink.allocate(wanted, never)
    assert target is not None
    assert sink.allocate(wanted, lambda: True) is None
    ((name, tensor),) = sink.make_tensors(wanted, target)
    assert (name, tensor.dtype, tensor.shape) == ("t0", torch.uint8, (LIMIT,))
    assert sink.allocate(wanted, lambda: True) is not None
