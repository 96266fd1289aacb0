"""From Python to a ref and back: directories and tensors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

import p2pcache
from p2pcache.agent.embedded import run_embedded
from p2pcache.errors import Conflict, NoSpace, NotFound, UsageError
from p2pcache.io.http.client import AgentClient
from p2pcache.loader.format.dtypes import Framework
from tests.cli import fake_agent as fakes
from tests.loader.loader_kit import Spec, torch_bytes, write, write_index
from tests.loader.source.agent_kit import agent_settings


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "origin").mkdir()
    settings = agent_settings(tmp_path, tmp_path / "origin", origin_bytes_per_s=0)
    with run_embedded(settings) as socket:
        yield f"unix://{socket}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write(folder / "model.safetensors", [Spec(f"t{i}", "BF16", (64, 64)) for i in range(9)])
    return folder


def test_a_directory_is_pushed_and_loaded(agent: str, folder: Path) -> None:
    ref = p2pcache.push(folder, "team/m:v1", agent=agent)
    name, _, digest = ref.partition("@blake3:")
    assert name == "team/m:v1"
    assert len(digest) == 64
    expected = {name: torch_bytes(tensor) for name, tensor in p2pcache.load(folder).items()}
    for asked in (name, ref):
        found = p2pcache.load(asked, agent=agent)
        assert {name: torch_bytes(tensor) for name, tensor in found.items()} == expected
    assert p2pcache.push(folder, "team/m:v1", agent=agent) == ref


def test_names_with_capitals(agent: str, folder: Path) -> None:
    ref = p2pcache.push(folder, "Qwen/Qwen3-8B", agent=agent)
    assert ref.startswith("Qwen/Qwen3-8B:latest@blake3:")
    for asked in (ref, "Qwen/Qwen3-8B", "qwen/qwen3-8b:latest"):
        assert len(p2pcache.load(asked, agent=agent)) == 9
    with pytest.raises(Conflict, match="written Qwen/Qwen3-8B"):
        p2pcache.push(folder, "qwen/QWEN3-8B:v2", agent=agent)
    row = AgentClient(agent).model("qwen/qwen3-8b")
    assert (row["ref"], row["spelled"]) == ("qwen/qwen3-8b:latest", "Qwen/Qwen3-8B")


def test_tensors_are_saved_and_loaded(agent: str) -> None:
    tensors = {"a": torch.arange(9).reshape(3, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    p2pcache.save_file(tensors, "team/t:v1", {"step": "1200"}, agent=agent)
    found = p2pcache.load("team/t:v1", agent=agent)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    with p2pcache.safe_open("team/t:v1", agent=agent) as model:
        assert model.metadata()["step"] == "1200"
    arrays = {"a": np.arange(4.0)}
    p2pcache.save_file(arrays, "team/n:v1", agent=agent)
    assert np.array_equal(p2pcache.load("team/n:v1", "cpu", "np", agent=agent)["a"], arrays["a"])


NINE = np.arange(9.0).reshape(3, 3)


@pytest.mark.parametrize(
    "value",
    [
        NINE.T, NINE[::2], NINE[:, ::-1], np.broadcast_to(np.float32(2), (3, 3)), np.float32(3.5),
        torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag,
    ],
    ids=["transposed", "every second", "backwards", "broadcast", "scalar", "conjugate", "negative"],
)  # fmt: skip
def test_a_view_is_saved_as_what_it_shows(agent: str, value: Any) -> None:
    """The library writes the memory that a view begins at, in its order."""
    kind: Framework = "pt" if isinstance(value, torch.Tensor) else "np"
    p2pcache.save_file({"a": value}, "team/view:v1", agent=agent)
    found = p2pcache.load("team/view:v1", "cpu", kind, agent=agent)["a"]
    assert found.shape == value.shape
    assert found.tolist() == value.tolist()


def test_without_an_agent_the_storage_takes_it(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P2PCACHE_AGENT", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(p2pcache.errors.Unreachable):
        p2pcache.push(folder, "team/m:v1")
    (tmp_path / "origin").mkdir()
    monkeypatch.setenv("P2PCACHE_ORIGIN", (tmp_path / "origin").as_uri())
    ref = p2pcache.push(folder, "team/m:v1")
    settings = agent_settings(tmp_path, tmp_path / "origin", origin_bytes_per_s=0)
    with run_embedded(settings) as socket:
        assert p2pcache.load(ref, agent=f"unix://{socket}").keys() == p2pcache.load(folder).keys()


def test_an_agent_that_refuses_is_not_passed_by(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "origin").mkdir()
    monkeypatch.setenv("P2PCACHE_ORIGIN", (tmp_path / "origin").as_uri())
    with fakes.fake_agent(tmp_path) as agent:
        agent.document(
            "GET /v1/status", {"code": 8, "message": "the agent is stopping"}, status=503
        )
        monkeypatch.setenv("P2PCACHE_AGENT", agent.address)
        with pytest.raises(p2pcache.errors.Unreachable, match="is stopping"):
            p2pcache.push(folder, "team/m:v1")
    assert not list((tmp_path / "origin").iterdir())


def test_what_can_not_be_pushed(tmp_path: Path, folder: Path) -> None:
    for name in ("team/m@blake3:" + "0" * 64, "", "a/b/c"):
        with pytest.raises(UsageError):
            p2pcache.push(folder, name)
    write_index(folder, {"t0": "model.safetensors", "x": "model-2.safetensors"})
    with pytest.raises(UsageError, match="strict=True"):
        p2pcache.push(folder, "team/m:v1", strict=True)


_SHARED = torch.zeros(8)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a": _SHARED, "b": _SHARED}, "give one"), ({"a": _SHARED, "b": np.zeros(2)}, "dict of torch tensors"),
        ({}, "dict of torch tensors"), ({"a": bytearray(3)}, "dict of torch tensors"),
        ({"a": 1}, "dict of torch tensors"),
        ([_SHARED], "dict of torch tensors"), (torch.nn.Linear(2, 2), r"state_dict\(\)"), ({1: _SHARED}, "names"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "complex128"), ({"a": np.zeros(2, "c16")}, "complex128"),
        ({"a": _SHARED.to("meta")}, "meta"), ({"a": _SHARED[::2]}, "contiguous"),
        ({"shared.weight": _SHARED[::2]}, "be saved: You are trying to save a non contiguous tensor"),
        ({"a": torch.nn.UninitializedParameter()}, "uninitialized"), ({"__metadata__": _SHARED}, "__metadata__"),
        ({"a": np.ma.masked_array([1.0, 2.0], [False, True])}, r"a: a mask .*filled\(\)"),
    ],
)  # fmt: skip
def test_tensors_that_can_not_be_saved(tmp_path: Path, tensors: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        p2pcache.save_file(tensors, "team/m:v1", agent=f"unix://{tmp_path}/nobody.sock")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "said"), [({"step": 1200}, "step"), (["step"], "a dict"), ("step", "a dict"), (5, "a dict")]
)  # fmt: skip
def test_metadata_is_text(tmp_path: Path, wrong: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        p2pcache.save_file({"a": _SHARED}, "team/m:v1", wrong, agent=f"unix://{tmp_path}/no.sock")


def test_a_missing_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(NotFound, match="TMPDIR"):
        p2pcache.save_file({"a": _SHARED}, "team/m:v1", agent=f"unix://{tmp_path}/no.sock")


def test_a_full_disk_is_no_fault_of_the_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(NoSpace):
        p2pcache.save_file({"a": _SHARED}, "team/m:v1", agent=f"unix://{tmp_path}/nobody.sock")
