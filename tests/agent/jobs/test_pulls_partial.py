"""Pulls of some files of a model: only their bytes come, and the tree never passes for the whole model."""

import random
from pathlib import Path

import pytest

from tests.agent.kit import agent, client, make_model, pull, push

DICE = random.Random(4)
FILES = {
    "config.json": b"{}", "empty": b"", "model-1.safetensors": DICE.randbytes(1_500_000),
    "model-2.safetensors": DICE.randbytes(1_500_000), "original/params.json": b"[]",
    "original/weights.pth": DICE.randbytes(900_000),
}  # fmt: skip


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    push(tmp_path / "origin", make_model(tmp_path / "model", FILES), "team/m:v1")
    return tmp_path / "origin"


def shown(done: dict[str, str]) -> dict[str, bytes]:
    tree = Path(done["models_dir"]) / done["path"]
    return {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()}


async def test_only_the_chosen_files_come(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        done = await pull(app, "team/m:v1", include=["*.json", "empty"], exclude=["original/"])
        assert done["event"] == "done"
        assert shown(done) == {"config.json": b"{}", "empty": b""}
        assert done["path"] == f"team/m/@{done['digest']}+{done['selection']}"
        assert done["bytes"] == 2
        assert app.metrics.totals()["origin"] < 600_000
        assert not (
            Path(done["models_dir"]) / "team/m/v1"
        ).exists()  # no tag passes it for the model
        one = await pull(app, "team/m:v1", include=["model-1*"])
        assert set(shown(one)) == {"model-1.safetensors"}
        assert one["bytes"] == 1_500_000
        assert one["selection"] != done["selection"]
        again = await pull(app, "team/m:v1", include=["model-1.safetensors"])
        assert (again["path"], again["bytes_origin"]) == (one["path"], 0)
        whole = await pull(app, "team/m:v1")
        assert shown(whole) == FILES
        assert app.metrics.totals()["origin"] == sum(map(len, FILES.values()))
        assert set(shown(one)) == {"model-1.safetensors"}


async def test_patterns_that_take_everything_are_a_pull(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        done = await pull(app, "team/m:v1", exclude=["*.bin"])
        assert done["path"] == f"team/m/@{done['digest']}"
        assert "selection" not in done
        assert shown(done) == FILES


async def test_a_restart_keeps_the_part_and_rm_takes_it(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        done = await pull(app, "team/m:v1", include=["original/"])
    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        assert set(shown(done)) == {"original/params.json", "original/weights.pth"}
        again = await pull(app, "team/m:v1", include=["original/"])
        assert again["bytes_origin"] == 0
        async with session.delete(f"/v1/model?ref=team/m@blake3:{done['digest']}") as answer:
            assert answer.status in (200, 409)  # the part's download ends a second after its client
        while app.downloads.running:
            await pull(app, "team/none:v1")
        async with session.delete(f"/v1/model?ref=team/m@blake3:{done['digest']}") as answer:
            assert answer.status in (200, 404)
        assert not (Path(done["models_dir"]) / done["path"]).exists()


@pytest.mark.parametrize(
    ("patterns", "code"),
    [
        ({"include": ["*.gguf"]}, 3),
        ({"exclude": ["*"]}, 3),
        ({"include": [""]}, 2),
        ({"include": ["x" * 2000]}, 2),
        ({"include": ["x"] * 100}, 2),
        ({"include": "x"}, 2),
    ],
)
async def test_bad_patterns_are_refused(
    tmp_path: Path, origin: Path, patterns: dict[str, object], code: int
) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        assert (await pull(app, "team/m:v1", **patterns))["code"] == code
        assert app.metrics.totals()["origin"] == 0
