"""A first pull that failed has a name: `ls` shows it, `rm` removes it."""

import random
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.core.format.layout import Layout
from p2pcache.core.swarm.events import Outcome
from p2pcache.ids import Ref
from tests.agent.kit import agent, client, make_model, pull, push

REF = "team/m:v1"
DATA = random.Random(2).randbytes(3_000_000)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return push(tmp_path / "origin", make_model(tmp_path / "model", {"w": DATA}), REF)


async def models(app: AgentApp) -> list[dict[str, Any]]:
    async with client(app) as session, session.get("/v1/models") as answer:
        rows: list[dict[str, Any]] = (await answer.json())["models"]
        return rows


async def remove(app: AgentApp, ref: str) -> int:
    async with client(app) as session, session.delete(f"/v1/model?ref={ref}") as answer:
        return answer.status


def no_answer(_repo: object, _layout: object, _store: object, runs: list[int], **more: Any) -> None:
    for run in runs:
        more["on_ended"](run, Outcome.UNAVAILABLE)


async def interrupt(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a pull, and stop the agent before its first byte."""
    with monkeypatch.context() as silent:
        silent.setattr("p2pcache.agent.origin_reads.fetch_runs", no_answer)
        async with agent(tmp, origin=(tmp / "origin").as_uri(), shutdown_s=0.1) as app:
            async with client(app) as session:
                answer = await session.post("/v1/pull", json={"ref": REF})
                await answer.content.readline()
                answer.close()


async def test_an_interrupted_pull_is_listed_and_removed_by_its_name(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interrupt(tmp_path, monkeypatch)
    async with agent(tmp_path) as app:
        (row,) = await models(app)
        assert (row["ref"], row["refs"], row["tags"]) == (REF, [REF], ["v1"])
        assert (row["digest"], row["complete"]) == (layout.digest, False)
        async with client(app) as session, session.get(f"/readyz?model={REF}") as answer:
            assert answer.status == 503
            assert "incomplete" in str((await answer.json())["reasons"])
        assert await remove(app, REF) == 200
        assert await models(app) == []
        assert await remove(app, REF) == 404


async def test_the_tag_is_set_when_the_model_is_complete(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interrupt(tmp_path, monkeypatch)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        assert app.store.tag_of(Ref.parse(REF)) is None
        assert app.store.prune(dry_run=True).removed == [REF]
        assert (await pull(app, REF))["event"] == "done"
        assert app.store.tags_of(layout.digest) == [Ref.parse(REF)]
        assert app.store._records.asked() == []
        (row,) = await models(app)
        assert (row["refs"], row["complete"]) == ([REF], True)


async def test_a_tag_means_the_complete_model_until_it_moves(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        assert (await pull(app, REF))["event"] == "done"
    newer = push(tmp_path / "origin", make_model(tmp_path / "newer", {"w": DATA[::-1]}), REF)
    await interrupt(tmp_path, monkeypatch)
    async with agent(tmp_path) as app:
        refs = {row["digest"]: row["refs"] for row in await models(app)}
        assert refs == {layout.digest: [REF], newer.digest: []}
        assert await remove(app, REF) == 200
        (row,) = await models(app)
        assert (row["digest"], row["refs"]) == (newer.digest, [REF])
        assert await remove(app, REF) == 200
        assert await models(app) == []


async def test_two_names_of_one_model_go_one_by_one(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interrupt(tmp_path, monkeypatch)
    async with agent(tmp_path) as app:
        app.store.ask(Ref.parse("team/other"), layout.digest)
        assert (await models(app))[0]["refs"] == [REF, "team/other:latest"]
        assert await remove(app, REF) == 200
        assert (await models(app))[0]["refs"] == ["team/other:latest"]
        assert await remove(app, "team/other") == 200
        assert await models(app) == []


async def test_names_of_removed_models_are_forgotten(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interrupt(tmp_path, monkeypatch)
    (tmp_path / "a" / "manifests" / layout.digest).unlink()
    async with agent(tmp_path) as app:
        assert app.store._records.asked() == []
        assert await remove(app, REF) == 404
