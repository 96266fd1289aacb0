"""Single tensors to a device, on one whose copies happen as late as they may."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import p2pcache
from p2pcache.errors import NoSpace, P2PCacheError
from p2pcache.loader import api, open_model
from p2pcache.loader.transfer import device_reads
from tests.loader.loader_kit import Spec, torch_bytes, write
from tests.loader.memory.fake_device import FakeAsyncBackend

SPECS = [
    Spec("large", "BF16", (3000, 700)),  # several reads
    *(Spec(f"mid{i}", "U8", (1 << 20,)) for i in range(8)),
    Spec("small", "F32", (10,)),
]


class Device(FakeAsyncBackend):
    """Counts what is made of it."""

    made: list["Device"] = []  # noqa: RUF012  # one list for all

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.threads = 0
        self.made.append(self)

    def enter(self) -> None:
        self.threads += 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """An open model with the device "meta" has this one."""
    Device.made = []
    monkeypatch.setattr(open_model, "CudaBackend", Device)
    monkeypatch.setattr(open_model, "to_device", lambda tensor, _: tensor)
    monkeypatch.setattr(api, "cuda_device", lambda _: None)
    monkeypatch.setattr(device_reads, "SLOT_BYTES", 1 << 20)
    return Device.made


def test_large_tensors_go_through_the_ring(tmp_path: Path, device: list[Device]) -> None:
    body = write(tmp_path / "m.safetensors", SPECS, pad=3)
    with p2pcache.safe_open(tmp_path, device="meta") as opened:
        assert torch_bytes(opened.get_tensor("small")) == body["small"]
        assert not device  # nothing was pinned for it
        with ThreadPoolExecutor(4) as pool:  # as transformers' loading does it
            found = dict(zip(body, pool.map(opened.get_tensor, body), strict=True))
        (backend,) = device
        assert backend.copies >= 5 + 8
        assert 0 < backend.threads <= 4
    assert {name: torch_bytes(tensor) for name, tensor in found.items()} == body
    backend.events.clear()  # they know of the slots
    assert backend.pinned() == 0


@pytest.mark.parametrize(
    "index", [(slice(100, 2900), ...), (..., slice(0, 350)), (..., slice(350, 700, 2))]
)
def test_slices(tmp_path: Path, device: list[Device], index: tuple[Any, ...]) -> None:
    write(tmp_path / "m.safetensors", SPECS)
    whole = p2pcache.load(tmp_path, filter="large")["large"]
    with p2pcache.safe_open(tmp_path, device="meta") as opened:
        found = opened.get_slice("large")[index]
    assert torch.equal(found.view(torch.int16), whole[index].view(torch.int16))
    assert device[0].copies


def test_an_error_is_the_callers_and_the_next_tensor_comes(
    tmp_path: Path, device: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = write(tmp_path / "m.safetensors", SPECS)
    with p2pcache.safe_open(tmp_path, device="meta") as opened:
        source, broken = opened._session.source, [True]
        read = source.read

        def fails(path: str, start: int, into: Any) -> None:
            if broken and start > 1 << 20:
                broken.pop()
                raise P2PCacheError("the disk refused")
            read(path, start, into)

        monkeypatch.setattr(source, "read", fails)
        with pytest.raises(P2PCacheError, match="the disk refused"):
            opened.get_tensor("large")
        assert torch_bytes(opened.get_tensor("large")) == body["large"]
    monkeypatch.setattr(Device, "alloc_host", _no_space)
    with p2pcache.safe_open(tmp_path, device="meta") as opened, pytest.raises(NoSpace):
        opened.get_tensor("large")


def _no_space(*_: Any) -> Any:
    raise NoSpace("nothing can be pinned")
