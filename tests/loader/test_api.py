"""The public calls on directories: what they give, what they refuse, what they leave behind."""

import gc
import logging
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import p2pcache
from p2pcache.errors import IntegrityError, InvalidHeader, NotFound, P2PCacheError, UsageError
from p2pcache.loader.stream import Tuning
from tests.loader.loader_kit import (
    Spec,
    reader_threads,
    soon,
    torch_bytes,
    write,
    write_index,
    write_raw,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path / "model.safetensors", [Spec(f"layers.{i}.w", "F32", (30, 40)) for i in range(6)]
    )
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, p2pcache; assert 'p2pcache.loader' not in sys.modules; "
        "p2pcache.load; assert not {'torch', 'numpy', 'aiohttp', 'asyncio'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_front_door() -> None:
    assert {"load", "load_into", "iter_tensors", "safe_open"} <= set(dir(p2pcache))
    with pytest.raises(AttributeError):
        p2pcache.nonsense  # noqa: B018  # type: ignore[attr-defined]


def test_raw_needs_neither_torch_nor_numpy(folder: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "import p2pcache\n"
        f"assert len(p2pcache.load({str(folder)!r}, framework='raw')) == 6\n"
        "for framework in ('pt', 'np'):\n"
        "    try: p2pcache.load('/nowhere', framework=framework)\n"
        "    except Exception as error: assert 'not installed' in str(error), error\n"
        "    else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_is_a_model_too(folder: Path) -> None:
    assert len(p2pcache.load(folder / "model.safetensors")) == 6


def test_layers_come_in_order(folder: Path) -> None:
    names = [name for name, _ in p2pcache.iter_tensors(folder, tuning=Tuning(threads=1))]
    assert names == [f"layers.{i}.w" for i in range(6)]


def test_hundreds_of_shards(tmp_path: Path) -> None:
    weight_map = {}
    for i in range(300):
        write(
            tmp_path / f"model-{i:05}-of-00300.safetensors", [Spec(f"t{i}", "BF16", (5, 3))], seed=i
        )
        weight_map[f"t{i}"] = f"model-{i:05}-of-00300.safetensors"
    write_index(tmp_path, weight_map)
    with soon():
        found = p2pcache.load(tmp_path)
    assert sorted(found) == sorted(weight_map)


def test_files_that_hold_no_tensors_are_listed(folder: Path) -> None:
    (folder / "model.gguf").write_bytes(b"GGUF")
    with p2pcache.safe_open(folder) as model:
        assert model.files()["model.gguf"] == 4
        assert model.metadata()["format"] == "pt"
        assert model.get_slice("layers.0.w").get_shape() == [30, 40]
        assert model.get_slice("layers.0.w").get_dtype() == "F32"
    (folder / "model.safetensors").unlink()
    with pytest.raises(NotFound, match=r"no .safetensors"):
        p2pcache.load(folder)


def test_one_line_says_what_happened(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "p2pcache.loader")
    with p2pcache.iter_tensors(folder) as stream:
        list(stream)
    (record,) = caplog.records
    assert "6 tensors, 28.8 kB" in record.message
    assert "disk 100%" in record.message
    assert "of 67.1 MB" in record.message
    assert stream.report.bytes == 6 * 4800
    assert stream.report.seconds > 0


def test_an_open_model_says_at_its_end_what_was_read(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "p2pcache.loader")
    with p2pcache.safe_open(folder) as model:
        assert len(model.keys()) == 6
    assert not caplog.records  # nothing was brought
    with p2pcache.safe_open(folder) as model:
        model.get_tensor("layers.0.w")
        for rows in (slice(10), slice(10, 30)):
            model.get_slice("layers.1.w")[rows]
        model.close()
    (record,) = caplog.records
    assert "2 tensors, 9.60 kB" in record.message
    assert "disk 100%" in record.message
    assert "memory" not in record.message.partition("waits")[0]


def test_the_memory_limit_holds_while_the_consumer_dawdles(tmp_path: Path) -> None:
    specs = [Spec(f"t{i}", "U8", (1 << 20,)) for i in range(20)]
    body = write(tmp_path / "m.safetensors", specs)
    with p2pcache.iter_tensors(tmp_path, memory_limit="9MiB") as stream:
        found = dict(stream)
    assert stream.report.memory_peak_bytes <= 9 << 20
    assert {name: torch_bytes(t) for name, t in found.items()} == body


@pytest.mark.parametrize("owned", [True, False])
def test_small_tensors_travel_together_only_below_the_limit(tmp_path: Path, *, owned: bool) -> None:
    write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (600 << 10,)) for i in range(12)])
    with p2pcache.iter_tensors(tmp_path, memory_limit="2MiB", owned=owned) as stream:
        assert sum(1 for _ in stream) == 12
    assert stream.report.memory_peak_bytes <= 2 << 20
    into = {f"t{i}": torch.zeros(600 << 10, dtype=torch.int32) for i in range(12)}
    assert p2pcache.load_into(into, tmp_path, memory_limit="2MiB").memory_peak_bytes <= 2 << 20


def test_a_tensor_larger_than_the_limit_comes_alone(tmp_path: Path) -> None:
    specs = [Spec("a", "U8", (100,)), Spec("big", "U8", (5 << 20,)), Spec("b", "U8", (100,))]
    body = write(tmp_path / "m.safetensors", specs)
    with p2pcache.iter_tensors(tmp_path, memory_limit="1MiB") as stream:
        assert {name: torch_bytes(t) for name, t in stream} == body
    assert stream.report.memory_peak_bytes == 5 << 20


def test_memory_of_dropped_tensors_is_used_again(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (4 << 20,)) for i in range(12)])
    addresses = set()
    for _, tensor in p2pcache.iter_tensors(tmp_path, memory_limit="8MiB"):
        addresses.add(tensor.data_ptr())
        del tensor
    assert len(addresses) <= 6


def test_tensors_outlive_everything(tmp_path: Path) -> None:
    body = write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (1 << 20,)) for i in range(8)])
    with p2pcache.iter_tensors(tmp_path, memory_limit="2MiB") as stream:
        first, second = next(stream), next(stream)
    del stream
    gc.collect()
    (tmp_path / "m.safetensors").unlink()
    assert torch_bytes(first[1]) == body[first[0]]
    assert torch_bytes(second[1]) == body[second[0]]


def test_an_abandoned_stream_leaves_no_thread(folder: Path) -> None:
    write(folder / "model.safetensors", [Spec(f"t{i}", "U8", (1 << 20,)) for i in range(20)])
    stream = p2pcache.iter_tensors(folder, memory_limit="1MiB")
    next(stream)
    assert any(t.name.startswith("p2pcache") for t in threading.enumerate())
    del stream
    gc.collect()
    assert reader_threads() == []


def test_load_into_a_module_with_tied_weights(tmp_path: Path) -> None:
    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)
            self.head = torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("steps", torch.zeros(()))

    body = write(
        tmp_path / "m.safetensors", [Spec("embed.weight", "F32", (10, 4)), Spec("steps", "F32", ())]
    )
    model = Model()
    p2pcache.load_into(model, tmp_path)
    assert torch_bytes(model.head.weight) == body["embed.weight"]
    assert model.embed.weight.requires_grad


def test_load_into_converts_what_it_must(tmp_path: Path) -> None:
    specs = [Spec("a", "BF16", (8, 6)), Spec("b", "I32", (8, 6)), Spec("c", "I64", (8, 6))]
    write(tmp_path / "m.safetensors", specs)
    expected = p2pcache.load(tmp_path)
    into = {
        "a": torch.zeros(8, 6, dtype=torch.float32),
        "b": torch.zeros(6, 8, dtype=torch.int32).t(),  # strides
        "c": torch.zeros(8, 12, dtype=torch.int64)[:, ::2],
    }
    p2pcache.load_into(into, tmp_path)
    for name, tensor in into.items():
        assert torch_bytes(tensor) == torch_bytes(expected[name].to(tensor.dtype))
    arrays = {"b": np.zeros((8, 6), np.int64), "c": np.zeros((6, 8), np.int64).T}
    p2pcache.load_into(arrays, tmp_path, strict=False)
    assert (arrays["b"] == expected["b"].numpy()).all()
    assert (arrays["c"] == expected["c"].numpy()).all()


def test_load_into_converts_for_one_framework_at_a_time(folder: Path) -> None:
    into = {"layers.0.w": torch.zeros(30, 40).double(), "layers.1.w": np.zeros((30, 40))}
    with pytest.raises(UsageError, match="torch and numpy"):
        p2pcache.load_into(into, folder, strict=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": torch.zeros(1)}, "the model lacks 1 tensor .extra."),
        ({"layers.0.w": None}, "the target lacks 1 tensor"),
        ({"layers.0.w": torch.zeros(30, 41)}, "layers.0.w: the target has the shape"),
        ({"layers.0.w": torch.zeros(30, 40, device="meta")}, "meta device"),
        ({"layers.0.w": bytearray(4799)}, "4799 bytes"),
        ({"layers.0.w": b"\0" * 4800}, "can't load into a bytes"),
        ({"layers.0.w": memoryview(b"\0" * 4800)}, "read-only"),
        ({"layers.0.w": [1.0]}, "can't load into a list"),
    ],
)
def test_load_into_checks_before_it_writes(
    folder: Path, change: dict[str, object], words: str
) -> None:
    into: dict[str, object] = {f"layers.{i}.w": torch.zeros(30, 40) for i in range(6)}
    into |= change
    into = {name: target for name, target in into.items() if target is not None}
    with pytest.raises(UsageError, match=words):
        p2pcache.load_into(into, folder)
    assert not any(t.any() for t in into.values() if isinstance(t, torch.Tensor) and not t.is_meta)


def test_slices_go_into_their_targets(folder: Path) -> None:
    axis = p2pcache.ParallelAxis("tensor", 1, 2, dim=1, names="*.w")
    into = {f"layers.{i}.w": torch.zeros(30, 20) for i in range(6)}
    p2pcache.load_into(into, folder, parallel=[axis])
    whole = p2pcache.load(folder)
    for name, tensor in into.items():
        assert torch_bytes(tensor) == torch_bytes(whole[name][:, 20:])


@pytest.mark.parametrize(("dim", "most"), [(0, 1.0), (1, 4.0)])
def test_a_rank_reads_little_more_than_its_share(tmp_path: Path, dim: int, most: float) -> None:
    write(
        tmp_path / "m.safetensors",
        [Spec(f"{i}.q_proj.weight", "BF16", (512, 1024)) for i in range(4)],
    )
    axis = p2pcache.ParallelAxis("tensor", 2, 4, dim, "*.q_proj.*")
    with p2pcache.iter_tensors(tmp_path, parallel=[axis]) as stream:
        assert sum(tensor.nbytes for _, tensor in stream) == 1 << 20
    assert stream.report.bytes == 1 << 20
    assert stream.report.bytes_read <= most * (1 << 20)


@pytest.mark.parametrize(
    "arguments",
    [
        {"framework": "tf"},
        {"framework": "np", "device": "cuda"},
        {"device": "cuda:99"},
        {"device": "toaster"},
        {"memory_limit": 100},
        {"memory_limit": "much"},
        {"fetch": "some"},
        {"stage": (2, 2)},
    ],
)
def test_bad_arguments(folder: Path, arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        p2pcache.iter_tensors(folder, **arguments)  # type: ignore[arg-type]
    assert reader_threads() == []


def test_what_is_not_there(folder: Path) -> None:
    with pytest.raises(NotFound):
        p2pcache.load(folder / "absent")
    with pytest.raises(NotFound):
        p2pcache.load("./absent")
    with pytest.raises(UsageError, match="not a model ref"):
        p2pcache.load("What Is This")
    with p2pcache.safe_open(folder) as model, pytest.raises(NotFound, match="no tensor 'x'"):
        model.get_tensor("x")


@pytest.mark.parametrize(
    "index",
    [
        (0, 0, 0),
        (slice(None, None, -2),),
        (..., ...),
        (30,),
        ("a",),
        (-31,),
        (True,),
        ([0],),
        (torch.tensor([1]),),
    ],
)
def test_bad_indices(folder: Path, index: tuple[object, ...]) -> None:
    with p2pcache.safe_open(folder) as model, pytest.raises(UsageError):
        model.get_slice("layers.0.w")[index]  # type: ignore[index]


def test_a_hostile_file_among_good_ones(folder: Path) -> None:
    write_raw(
        folder / "evil.safetensors", '{"x":{"dtype":"U8","shape":[99],"data_offsets":[0,99]}}'
    )
    for call in (p2pcache.load, p2pcache.safe_open, p2pcache.iter_tensors):
        with pytest.raises(InvalidHeader, match=r"evil.safetensors"):
            call(folder)


def test_a_file_that_shrinks_midway(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, [Spec(f"t{i}", "U8", (1 << 20,)) for i in range(20)])
    stream = p2pcache.iter_tensors(tmp_path, memory_limit="1MiB")
    next(stream)
    with path.open("r+b") as file:
        file.truncate(9 << 20)
    with pytest.raises(IntegrityError, match="too early"), soon():
        list(stream)
    assert stream.report.failed
    assert reader_threads() == []
    with pytest.raises(StopIteration):
        next(stream)


def test_many_loads_at_once(folder: Path) -> None:
    expected = {name: torch_bytes(t) for name, t in p2pcache.load(folder).items()}
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(5):
                found = p2pcache.load(folder)
                if {name: torch_bytes(t) for name, t in found.items()} != expected:
                    wrong.append("bytes")
        except P2PCacheError as error:
            wrong.append(error)

    crowd = [threading.Thread(target=work) for _ in range(8)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert not wrong


def test_an_open_model_serves_many_threads(tmp_path: Path) -> None:
    body = write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (9 << 20,)) for i in range(3)])
    wrong: list[str] = []
    with p2pcache.safe_open(tmp_path) as model:

        def work(name: str) -> None:
            if torch_bytes(model.get_tensor(name)) != body[name]:
                wrong.append(name)

        crowd = [threading.Thread(target=work, args=(name,)) for name in list(body) * 2]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
    assert not wrong
