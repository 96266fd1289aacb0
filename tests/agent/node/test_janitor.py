"""A cache dir that is deleted or replaced ends the agent with one line."""

import asyncio
import contextlib
import random
import shutil
from pathlib import Path

import pytest

from p2pcache.agent.downloads.give_up import disk_failed
from p2pcache.agent.node import janitor
from p2pcache.errors import Unreachable
from p2pcache.io.models.store import Store
from tests.agent.kit import agent, client, make_model, pull, push


@pytest.mark.parametrize("replaced", [False, True])
async def test_the_agent_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    monkeypatch.setattr(janitor, "LOOK_S", 0.5)
    with pytest.RaisesGroup(Unreachable, flatten_subgroups=True, allow_unwrapped=True):
        async with agent(tmp_path) as app:
            shutil.rmtree(app.settings.cache_dir)
            if replaced:
                Path(app.settings.cache_dir).mkdir()
            async with client(app) as session, session.get("/v1/status") as answer:
                told = await answer.json()
            assert told["code"] == 8
            assert "was deleted or replaced under this agent; restart it" in told["message"]
            await asyncio.sleep(60)  # it ends meanwhile


async def test_a_pull_before_the_next_look_fails_with_the_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, size in (("here", 300_000), ("new", 400_000)):
        push(tmp_path / "origin", make_model(tmp_path / name, {"w": random.randbytes(size)}), name)
    with pytest.RaisesGroup(Unreachable, flatten_subgroups=True, allow_unwrapped=True):
        async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
            assert (await pull(app, "here"))["event"] == "done"
            shutil.rmtree(app.settings.cache_dir)
            for name in ("here", "new"):
                failed = await pull(app, name)
                assert failed["code"] == 8, failed  # not 3: the model isn't what is missing
                assert "was deleted or replaced under this agent" in failed["message"]
            await asyncio.sleep(60)  # it ends meanwhile
    assert "Traceback" not in caplog.text  # it is no bug


def test_a_full_disk_and_a_missing_cache_dir_have_different_errors(tmp_path: Path) -> None:
    with contextlib.closing(Store.open(tmp_path / "cache")) as store:
        assert "bytes free on its disk" in str(disk_failed(store))
        shutil.rmtree(tmp_path / "cache")
        gone = disk_failed(store)
    assert isinstance(gone, Unreachable)
    assert "was deleted" in str(gone)
