"""The device path on a real GPU; needs torch with CUDA and nothing else."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import p2pcache
from p2pcache.loader.integrations.weights import EngineSettings, place_for, stream_weights
from p2pcache.loader.memory.backend import CudaBackend, HostMemory
from p2pcache.loader.stream import Tuning
from tests.loader.loader_kit import Spec, torch_bytes, write

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs torch with CUDA and a GPU"),
]
SPECS = [
    *(Spec(f"small{i}", "BF16", (i, 7)) for i in range(50)),
    Spec("big", "F32", (9000, 1000)),
    Spec("scalar", "I64", ()),
    Spec("empty", "F16", (0, 3)),
    Spec("flags", "BOOL", (33,)),
    Spec("f8", "F8_E4M3", (77, 3)),
    *(Spec(f"mid{i}", "U8", (3 << 20,)) for i in range(20)),
]


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    return tmp_path, write(tmp_path / "m.safetensors", SPECS, pad=5)


@pytest.mark.parametrize("limit", ["1MiB", "40MB", "1GiB"])
@pytest.mark.parametrize("tuning", [Tuning(), Tuning(threads=4, ring_slots=2, copy_streams=2)])
def test_all_tensors_arrive_and_are_held(
    model: tuple[Path, dict[str, bytes]], limit: str, tuning: Tuning
) -> None:
    folder, body = model
    found = dict(p2pcache.iter_tensors(folder, device="cuda", memory_limit=limit, tuning=tuning))
    assert all(t.is_cuda for t in found.values())
    assert {name: torch_bytes(t) for name, t in found.items()} == body


def test_a_consumer_on_its_own_stream(model: tuple[Path, dict[str, bytes]]) -> None:
    folder, body = model
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = {
            name: tensor.clone() for name, tensor in p2pcache.iter_tensors(folder, device="cuda")
        }
    stream.synchronize()
    assert {name: torch_bytes(t) for name, t in found.items()} == body


def test_memory_that_is_dropped_and_used_again(model: tuple[Path, dict[str, bytes]]) -> None:
    folder, body = model
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in p2pcache.iter_tensors(folder, device="cuda", memory_limit="8MiB"):
        kept[name] = tensor.clone()
        del tensor
    assert {name: torch_bytes(t) for name, t in kept.items()} == body


def test_into_device_tensors(model: tuple[Path, dict[str, bytes]]) -> None:
    folder, body = model
    into = {name: torch.zeros_like(t) for name, t in p2pcache.load(folder, device="cuda").items()}
    into["mid3"] = torch.zeros(3 << 20, dtype=torch.uint8)  # one stays on the host
    into["mid4"] = torch.zeros(3 << 20, dtype=torch.int32, device="cuda")  # one is converted
    p2pcache.load_into(into, folder)
    found = into.pop("mid4").to(torch.uint8)
    assert torch_bytes(found) == body["mid4"]
    assert {name: torch_bytes(t) for name, t in into.items()} == {
        name: data for name, data in body.items() if name != "mid4"
    }


def test_load_with_a_default_device_and_inference_mode(
    model: tuple[Path, dict[str, bytes]],
) -> None:
    """With a GPU as the default device, into tensors that were made in inference mode, outside of it."""
    folder, body = model
    with torch.device("cuda"):
        found = p2pcache.load(folder, device="cuda")
        with torch.inference_mode():
            into = {name: torch.zeros_like(tensor) for name, tensor in found.items()}
        p2pcache.load_into(into, folder)
    for each in (found, into):
        assert {name: torch_bytes(t) for name, t in each.items()} == body


def test_slices(model: tuple[Path, dict[str, bytes]]) -> None:
    folder, _ = model
    whole = p2pcache.load(folder, filter="big")["big"]
    for dim in (0, 1):
        axis = p2pcache.ParallelAxis("tensor", 2, 4, dim, "big")
        part = p2pcache.load(folder, device="cuda", filter="big", parallel=[axis])["big"]
        assert torch_bytes(part) == torch_bytes(whole.chunk(4, dim)[2])


def test_one_tensor_by_name(model: tuple[Path, dict[str, bytes]]) -> None:
    folder, body = model
    with p2pcache.safe_open(folder, device="cuda") as opened:
        assert torch_bytes(opened.get_tensor("mid1")) == body["mid1"]


def test_one_by_one_from_several_threads(model: tuple[Path, dict[str, bytes]]) -> None:
    folder, body = model
    with (
        p2pcache.safe_open(folder, device="cuda") as opened,
        ThreadPoolExecutor(4) as pool,
    ):
        found = dict(zip(body, pool.map(opened.get_tensor, body), strict=True))
        rows = opened.get_slice("big")[100:8000]
        columns = opened.get_slice("big")[:, 250:500]
    assert all(t.is_cuda for t in found.values())
    assert {name: torch_bytes(t) for name, t in found.items()} == body
    assert torch_bytes(rows) == torch_bytes(found["big"][100:8000])
    assert torch_bytes(columns) == torch_bytes(found["big"][:, 250:500])


def test_an_engines_weights(model: tuple[Path, dict[str, bytes]]) -> None:
    folder, body = model
    settings = EngineSettings(device="cuda")
    place = place_for(folder, settings)
    assert place.device == "cuda"
    found = dict(stream_weights(folder, settings, place=place))
    assert all(t.is_cuda for t in found.values())
    assert {name: torch_bytes(t) for name, t in found.items()} == body


def test_a_transformers_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=8,
        vocab_size=4096,
    )
    made = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    made.save_pretrained(tmp_path)
    for place in ("cuda", 0, {"": "cuda:0"}):
        found = p2pcache.from_pretrained(
            tmp_path, transformers.LlamaForCausalLM, dtype="auto", device_map=place
        )
        assert found.device.type == "cuda"
        for name, tensor in made.state_dict().items():
            assert torch.equal(found.state_dict()[name].cpu(), tensor), name


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_module_over_two_devices(model: tuple[Path, dict[str, bytes]]) -> None:
    folder, body = model
    names = sorted(body)
    into = {
        name: torch.zeros_like(tensor, device=f"cuda:{names.index(name) % 2}")
        for name, tensor in p2pcache.load(folder).items()
    }
    p2pcache.load_into(into, folder)
    assert {name: torch_bytes(t) for name, t in into.items()} == body


def test_the_ring_pins_no_more_than_it_says_and_lets_all_go(
    model: tuple[Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[weakref.ref[torch.Tensor]] = []
    sizes: list[int] = []
    alloc = CudaBackend.alloc_host

    def watched(backend: CudaBackend, nbytes: int) -> HostMemory:
        found = alloc(backend, nbytes)
        sizes.append(nbytes)
        pinned.append(weakref.ref(found.handle))
        return found

    monkeypatch.setattr(CudaBackend, "alloc_host", watched)
    p2pcache.load(model[0], device="cuda", memory_limit="40MB")
    assert 0 < sum(sizes) <= 40_000_000
    gc.collect()
    assert not any(memory() is not None for memory in pinned)
