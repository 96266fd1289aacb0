"""`rm` and `prune` leave a model alone that another process has open or mapped."""

import random
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.core.format.layout import Layout
from p2pcache.io.host import file_users
from tests.agent.kit import agent, client, make_model, pull, push
from tests.io.host.test_file_users import holding

REF = "team/m:v1"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    files = {"weights.bin": random.Random(3).randbytes(500_000)}
    return push(tmp_path / "origin", make_model(tmp_path / "model", files), REF)


async def weights(app: AgentApp) -> Path:
    done = await pull(app, REF)
    return Path(str(done["models_dir"])) / str(done["path"]) / "weights.bin"


async def remove(app: AgentApp) -> tuple[int, dict[str, Any]]:
    async with client(app) as session, session.delete(f"/v1/model?ref={REF}") as answer:
        return answer.status, await answer.json()


async def prune(app: AgentApp, *, dry_run: bool = False) -> dict[str, Any]:
    body = {"all": True, "dry_run": dry_run}
    async with client(app) as session, session.post("/v1/prune", json=body) as answer:
        told: dict[str, Any] = await answer.json()
        return told


@pytest.mark.parametrize("how", ["open", "path", "mapped"])
async def test_what_a_process_uses_stays(tmp_path: Path, layout: Layout, how: str) -> None:
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        file = await weights(app)
        with holding(file, how) as pid:
            status, told = await remove(app)
            assert (status, told["code"]) == (409, 10)
            assert f"(pid {pid}" in told["message"]
            for dry_run in (True, False):
                told = await prune(app, dry_run=dry_run)
                assert told["removed"] == []
                assert f"{REF}: " in told["kept"][0]
            assert file.exists()
            # It is still served: nothing was left half way.
            assert layout.digest in app.downloads.swarms
        status, told = await remove(app)
        assert (status, told["unsure"]) == (200, "")
        assert not file.exists()


async def test_leases_tell_where_processes_cannot_be_seen(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container without the host's namespace of processes."""
    monkeypatch.setattr(
        "p2pcache.io.models.model_users.file_users.look",
        lambda _wanted: file_users.Look([], "others can't be seen"),
    )
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        file = await weights(app)
        for how in ("open", "mapped"):
            with holding(file, how):
                status, told = await remove(app)
                assert (status, told["code"]) == (409, 10)
                assert "others can't be seen" in told["message"]
        assert (await remove(app))[0] == 200


async def test_a_file_that_two_models_share_counts_for_the_one_it_was_opened_by(
    tmp_path: Path, layout: Layout
) -> None:
    again = make_model(tmp_path / "again", {
        "weights.bin": (tmp_path / "model" / "weights.bin").read_bytes(), "config": b"{}",
    })  # fmt: skip
    push(tmp_path / "origin", again, "team/n:v1")
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await weights(app)
        done = await pull(app, "team/n:v1")
        other = Path(done["models_dir"]) / done["path"] / "weights.bin"
        with holding(other, "mapped"):
            assert (await remove(app))[0] == 200
            assert (await prune(app))["kept"][0].startswith("team/n:v1: ")
