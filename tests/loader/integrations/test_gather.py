"""Two workers that load one model together, over gloo on the host."""

import multiprocessing
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from p2pcache.errors import P2PCacheError
from p2pcache.loader.format.header import TensorInfo
from p2pcache.loader.integrations import gather
from p2pcache.loader.integrations.gather import Groups, gathered, share
from p2pcache.loader.integrations.weights import EngineSettings, Place, stream_weights
from tests.loader.loader_kit import Spec, torch_bytes, write

SPECS = [
    *(Spec(f"layers.{i}.w", "BF16", (300, 70)) for i in range(9)),
    Spec("scalar", "F32", ()),
    Spec("empty", "F16", (0, 3)),
    Spec("odd", "BOOL", (33,)),
    Spec("f8", "F8_E4M3", (77, 3)),
    Spec("large", "F32", (500, 100)),
]
LIMIT_S = 15


def infos(sizes: list[int]) -> list[TensorInfo]:
    return [TensorInfo(str(i), "U8", (n,), "m", 0, n) for i, n in enumerate(sizes)]


def test_shares_are_stretches_of_a_round_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "ROUND_BYTES", 100)
    every = infos([60, 60, 30, 10, 100, 500, 0, 20])
    shares = [[info.name for info in share(every, rank, 3)] for rank in range(3)]
    assert shares == [["0", "1"], ["2", "3", "4", "6", "7"], ["5"]]
    assert share(every, 0, 1) == every


def worker(rank: int, folder: Path, what: str) -> None:
    answer: Any
    gather.ROUND_BYTES = 100_000
    torch.set_num_threads(1)  # threads of OpenMP don't live on in a fork
    try:
        dist.init_process_group("gloo", f"file://{folder}/store-{what}", rank=rank, world_size=2)
        groups, settings = Groups(dist.group.WORLD, dist.group.WORLD), EngineSettings()
        if what == "failed":

            def broken() -> Iterator[tuple[str, Any]]:
                yield "a", torch.zeros(200_000, dtype=torch.uint8)
                if rank:
                    raise P2PCacheError("the disk refused")
                yield "b", torch.zeros(3)

            dict(gathered(broken(), groups, "cpu"))
        skip = (lambda name: name == "odd") if what == "skipped" else None
        found = stream_weights(folder, settings, prefix="x.", skip=skip, place=Place("cpu", groups))
        answer = [(name, torch_bytes(t), tuple(t.shape), str(t.dtype)) for name, t in found]
    except Exception:  # noqa: BLE001  # told to the test
        answer = traceback.format_exc()
    (folder / f"answer-{rank}").write_bytes(pickle.dumps(answer))


def run(folder: Path, what: str) -> list[Any]:
    context = multiprocessing.get_context("fork")  # torch's import takes seconds
    workers = [context.Process(target=worker, args=(i, folder, what)) for i in range(2)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(LIMIT_S)
        if each.is_alive():
            each.kill()
            each.join()
    assert not any(each.exitcode for each in workers), [each.exitcode for each in workers]
    return [pickle.loads((folder / f"answer-{i}").read_bytes()) for i in range(2)]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("what", ["whole", "skipped"])
def test_each_gets_all_in_the_same_order(tmp_path: Path, what: str) -> None:
    body = write(tmp_path / "m.safetensors", SPECS, pad=3)
    if what == "skipped":
        del body["odd"]
    first, second = run(tmp_path, what)
    assert first == second
    assert {name: data for name, data, _, _ in first} == {
        f"x.{n}": data for n, data in body.items()
    }
    shapes = {name: (shape, dtype) for name, _, shape, dtype in first}
    assert shapes["x.empty"] == ((0, 3), "torch.float16")
    assert shapes["x.scalar"] == ((), "torch.float32")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_what_fails_in_one_fails_in_all(tmp_path: Path) -> None:
    first, second = run(tmp_path, "failed")
    assert "P2PCacheError: worker 1 of 2 failed: the disk refused" in first
    assert "P2PCacheError: the disk refused" in second
