"""A model that is complete here needs neither storage nor tracker."""

import asyncio
import contextlib
import gc
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.downloads.resolver import Resolver
from p2pcache.errors import NotAllowed, OriginUnavailable
from p2pcache.ids import Ref
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.origins.tag_patience import FIRST_S, LONG_S, SHORT_S, TagPatience
from tests.agent.kit import agent, client, events, make_model, pull, push
from tests.io.models.store_kit import open_store

REF = "team/m:v1"


def test_patience_is_learned() -> None:
    patience = TagPatience()
    assert patience.limit_s(trouble=False) == FIRST_S
    assert patience.limit_s(trouble=True) == SHORT_S
    patience.learn(0.01)
    assert patience.limit_s(trouble=False) == SHORT_S
    patience.learn(1.0)  # slow storage is heard
    assert patience.limit_s(trouble=False) == pytest.approx(3.0)
    patience.learn(60.0)
    assert patience.limit_s(trouble=False) == LONG_S


async def stale(app: Any) -> tuple[dict[str, Any], float]:
    began = time.monotonic()
    async with client(app) as session, session.post("/v1/pull", json={"ref": REF}) as answer:
        told = await events(answer)
    assert told[-1]["event"] == "done"
    (resolved,) = (event for event in told if event["event"] == "resolved")
    assert resolved["stale"]
    return resolved, time.monotonic() - began


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    push(tmp_path / "origin", make_model(tmp_path / "model", {"a": b"1"}), REF)
    return tmp_path / "origin"


async def test_storage_that_says_nothing(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def silent(*_: Any) -> Any:
        over.wait(60)
        raise OriginUnavailable("too late")

    async with agent(tmp_path, origin=origin.as_uri()) as app:
        for _ in range(2):  # the second answer tells how quick this storage is
            assert not (await pull(app, REF)).get("stale")
        monkeypatch.setattr(OriginRepo, "get_tag", silent)
        resolved, took = await stale(app)
        over.set()
    assert "didn't answer in" in resolved["trouble"]
    assert took < 5  # not the retries' half minute


@pytest.mark.parametrize("error", [NotAllowed("the token has expired"), OriginUnavailable("503")])
async def test_storage_that_refuses(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(*_: Any) -> Any:
        raise error

    async with agent(tmp_path, origin=origin.as_uri()) as app:
        await pull(app, REF)
        monkeypatch.setattr(OriginRepo, "get_tag", refused)
        assert (await stale(app))[0]["trouble"] == str(error)
        # What isn't here needs it.
        assert (await pull(app, "team/other:v1"))["code"] == getattr(error, "exit_code", 0)


async def test_storage_whose_mount_is_gone(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        await pull(app, REF)
        shutil.rmtree(origin)
        await stale(app)


async def test_a_tag_that_moved_is_followed(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        await pull(app, REF)
        newer = push(origin, make_model(tmp_path / "newer", {"a": b"2"}), REF)
        assert (await pull(app, REF))["digest"] == newer.digest
        assert app.store.tag_of(Ref.parse(REF))


async def test_a_refusal_that_comes_too_late_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []

    async def late(_self: Resolver, _ref: Ref) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise OriginUnavailable("too late") from None

    monkeypatch.setattr(Resolver, "_ask", late)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    with contextlib.closing(open_store(tmp_path)) as store:
        with contextlib.suppress(OriginUnavailable):
            await Resolver(store, None)._ask_briefly(Ref.parse(REF))
        await asyncio.sleep(0.1)
        gc.collect()
    assert not said
