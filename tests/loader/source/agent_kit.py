"""A model in an origin, and the settings of agents that fetch it slowly."""

from pathlib import Path
from typing import Any

from p2pcache.agent.settings import AgentSettings
from p2pcache.io.http.client import AgentClient
from tests.agent.kit import push
from tests.loader.loader_kit import Spec, write, write_index

REF = "team/m:v1"
LAYERS = 24
RATE = 4_000_000  # bytes/s of the origin: the model takes about 3 s


def make_origin(root: Path) -> tuple[Path, dict[str, bytes]]:
    """An origin with a model of two shards and 12 MB; tensors have 512 KiB. Returns also their bytes."""
    (root / "model").mkdir()
    bodies: dict[str, bytes] = {}
    weight_map: dict[str, str] = {}
    for shard in range(2):
        names = [f"layers.{shard * LAYERS // 2 + i}.w" for i in range(LAYERS // 2)]
        specs = [Spec(name, "BF16", (512, 512)) for name in names]
        bodies |= write(root / f"model/model-{shard}.safetensors", specs, seed=100 * shard)
        weight_map |= dict.fromkeys(names, f"model-{shard}.safetensors")
    write_index(root / "model", weight_map)
    push(root / "origin", root / "model", REF)
    return root / "origin", bodies


def agent_settings(tmp: Path, origin: Path, **more: Any) -> AgentSettings:
    """Of an agent that reads `RATE` bytes per second from the origin."""
    settings: dict[str, Any] = {
        "listen": "127.0.0.1:0", "cache_dir": str(tmp / "cache"), "socket": str(tmp / "a.sock"),
        "origin": origin.as_uri(), "min_free_bytes": 0, "shutdown_s": 1.0, "origin_bytes_per_s": RATE,
    }  # fmt: skip
    return AgentSettings(**{**settings, **more})


def origin_bytes(agent: str) -> int:
    """How many bytes the agent has read from the origin."""
    return int(AgentClient(agent).status()["bytes"]["origin"])
