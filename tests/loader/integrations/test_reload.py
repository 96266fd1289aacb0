"""A trainer's next step reaches an engine: what has changed is moved, the rest is copied on the node."""

from pathlib import Path

from p2pcache.agent.embedded import run_embedded
from p2pcache.loader.integrations.weights import EngineSettings, find_weights, stream_weights
from p2pcache.loader.resolve import snapshot
from tests.agent.kit import push
from tests.loader.loader_kit import Spec, torch_bytes, write
from tests.loader.source.agent_kit import agent_settings, origin_bytes

SPECS = [Spec(f"layers.{i}.w", "BF16", (512, 512)) for i in range(8)]


def make_step(root: Path, step: int) -> dict[str, bytes]:
    """Eight tensors of 512 KiB in two files; the second one is another with each step."""
    folder = root / f"step-{step}"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    body = write(folder / "model-0.safetensors", SPECS[:4])
    body |= write(folder / "model-1.safetensors", SPECS[4:], seed=100 * step)
    push(root / "origin", folder, f"team/m:step-{step}")
    return body


def test_the_next_step_moves_what_has_changed(tmp_path: Path) -> None:
    make_step(tmp_path, 1)
    with run_embedded(agent_settings(tmp_path, tmp_path / "origin")) as socket:
        agent = f"unix://{socket}"
        snapshot("team/m:step-1", agent=agent)
        before, body = origin_bytes(agent), make_step(tmp_path, 2)
        # The directory that the engine was started from is of the first step, and so is its setting.
        settings = EngineSettings("team/m:step-1", agent)
        where = find_weights("team/m:step-2", settings)
        assert isinstance(where, str)  # it still arrives
        assert where.startswith("team/m:step-2@blake3:")
        found = {name: torch_bytes(tensor) for name, tensor in stream_weights(where, settings)}
        assert found == body
        moved = origin_bytes(agent) - before
        assert 2 << 20 <= moved < 2.2 * (1 << 20)  # of 4 MiB
