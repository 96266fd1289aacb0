"""Unmodified hub clients ask the hub door for a model that nobody has: one node brings it in, for all of them."""

import asyncio
import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.io.sources.settings import SourceSettings
from tests.agent.doors.kit import until_listed
from tests.agent.jobs.warm_kit import cluster
from tests.io.sources.kit import COMMIT, Hub, anonymous_hub

BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 0,
    "num_attention_heads": 1, "intermediate_size": 8, "max_position_embeddings": 16,
}  # fmt: skip
NAME = "embeddings.word_embeddings.weight"
TABLE = struct.pack("<400f", *range(400))
HEAD = json.dumps(
    {NAME: {"dtype": "F32", "shape": [50, 8], "data_offsets": [0, len(TABLE)]}}
).encode()
FILES = {
    "config.json": json.dumps(BERT).encode(),
    "model.safetensors": struct.pack("<Q", len(HEAD)) + HEAD + TABLE,
    "onnx/model.onnx": os.urandom(300_000), "README.md": b"# a model\n",
}  # fmt: skip
LOAD = f"""
from transformers import AutoModel
model = AutoModel.from_pretrained("org/model")
print(model.state_dict()["{NAME}"].flatten().tolist() == list(map(float, range(400))))
"""
SUBSET = """
import pathlib
from huggingface_hub import snapshot_download
folder = pathlib.Path(snapshot_download("org/model", allow_patterns=["*.json", "*.safetensors"]))
print(sorted(path.name for path in folder.rglob("*") if path.is_file()))
"""
SAID = "['config.json', 'model.safetensors']\n"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with anonymous_hub(
        monkeypatch, tmp_path / "none", FILES, {"model.safetensors", "onnx/model.onnx"}
    ) as one:
        yield one


@contextlib.asynccontextmanager
async def nodes(tmp: Path, hub: Hub) -> AsyncIterator[list[AgentApp]]:
    """Two nodes with a door, which may ask the hub."""
    (tmp / "origin").mkdir()
    source = SourceSettings(url="hf://", endpoint=hub.url, private=True, on_miss=True)
    async with cluster(tmp, "", "", sources={"hub": source}, hf_listen="127.0.0.1:0") as apps:
        yield apps


async def ran(code: str, home: Path, **env: str) -> str:
    """What a client prints in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], env=clean | {"HF_HOME": str(home), **env},
        capture_output=True, text=True, timeout=80, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def endpoint(app: AgentApp) -> str:
    return f"http://{app.listeners.door_addresses['hf_listen']}"


def read_once(hub: Hub) -> bool:
    """Whether the hub and its store sent the bytes of each file once, and all of them at one commit.

    Besides one byte, which shows that parts of files can be read.
    """

    def of_a_file(headers: dict[str, str]) -> bool:
        first, _, last = headers.get("range", "").removeprefix("bytes=").partition("-")
        return first != last

    small = [path for _, path, headers in hub.seen if of_a_file(headers)]
    large = [path for _, path, headers in hub.cdn.seen if of_a_file(headers)]
    names = sorted(path.removeprefix(f"/org/model/resolve/{COMMIT}/") for path in small)
    oids = sorted(path.partition("?")[0].removeprefix("/cdn/") for path in large)
    return names == sorted(FILES) and oids == sorted(hub.entry(name)["oid"] for name in hub.lfs)


async def test_two_nodes_clients_at_once_cost_the_hub_one_copy(tmp_path: Path, hub: Hub) -> None:
    """A subset is asked for: what came is what was asked for, and a second start offline asks nobody."""
    async with nodes(tmp_path, hub) as apps:
        homes = [tmp_path / "h0", tmp_path / "h1"]
        said = await asyncio.gather(
            *(ran(SUBSET, home, HF_ENDPOINT=endpoint(app)) for home, app in zip(homes, apps, strict=True))
        )  # fmt: skip
        assert list(said) == [SAID, SAID]
        assert read_once(hub), hub.seen
        before = len(hub.seen), len(hub.cdn.seen)
        assert await ran(SUBSET, homes[1], HF_ENDPOINT=endpoint(apps[1])) == SAID
        assert (len(hub.seen), len(hub.cdn.seen)) == before
    offline = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:1"}
    assert await ran(SUBSET, homes[0], **offline) == SAID


@pytest.mark.slow
async def test_transformers_load_what_nobody_had(tmp_path: Path, hub: Hub) -> None:
    async with nodes(tmp_path, hub) as apps:
        said = await asyncio.gather(
            ran(LOAD, tmp_path / "h0", HF_ENDPOINT=endpoint(apps[0])),
            ran(SUBSET, tmp_path / "h1", HF_ENDPOINT=endpoint(apps[1])),
        )
        assert list(said) == ["True\n", SAID]
        assert read_once(hub), hub.seen
        await until_listed(apps[0], "org/model:main")
