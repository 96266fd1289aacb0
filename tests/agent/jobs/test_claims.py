"""Pins and holds: what they keep here, when they end, and that no namespace has a say in another's."""

import asyncio
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.jobs import room
from p2pcache.core.protocol.tokens import Scope
from p2pcache.errors import Conflict
from p2pcache.ids import Ref
from p2pcache.io.clock import start_of
from p2pcache.io.disk import claims
from p2pcache.io.disk.claims import Claim
from tests.agent.api.rights_kit import ask, guarded, over_tcp, token
from tests.agent.kit import agent, client, make_model, pull, push

MB = 1 << 20


@pytest.fixture(autouse=True)
def not_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "FRESH_S", 0.0)


@pytest.fixture
def origin(tmp_path: Path) -> str:
    for number in range(3):
        files = {"weights.bin": random.Random(number).randbytes(4 * MB)}
        push(tmp_path / "origin", make_model(tmp_path / f"m{number}", files), f"team/m{number}:v1")
    return (tmp_path / "origin").as_uri()


async def call(app: AgentApp, method: str, path: str, **body: Any) -> tuple[int, Any]:
    async with client(app) as session, session.request(method, path, **body) as answer:
        return answer.status, await answer.json()


async def evict(app: AgentApp, ref: str) -> tuple[int, Any]:
    return await call(app, "POST", "/v1/evict", json={"ref": ref})


async def pins(app: AgentApp) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await call(app, "GET", "/v1/pins"))[1]["pins"]
    return rows


async def test_a_pinned_model_stays_until_it_is_unpinned(tmp_path: Path, origin: str) -> None:
    async with agent(tmp_path, origin=origin, cache_quota="6MiB") as app:
        assert (await pull(app, "team/m0:v1"))["event"] == "done"
        wish = {"ref": "team/m0:v1", "name": "prod"}
        assert (await call(app, "POST", "/v1/pins", json=wish))[0] == 200
        assert (await pull(app, "team/m1:v1"))["code"] == 5
        for method, path, body in (
            ("POST", "/v1/evict", {"json": {"ref": "team/m0:v1"}}),
            ("DELETE", "/v1/model?ref=team/m0:v1", {}),
        ):
            status, told = await call(app, method, path, **body)
            assert (status, told["code"]) == (409, 10)
            assert "pinned by prod" in told["message"]
        _, told = await call(app, "POST", "/v1/prune", json={"all": True})
        assert (told["removed"], told["kept"]) == ([], ["team/m0:v1: pinned by prod"])
    async with agent(tmp_path, origin=origin, cache_quota="6MiB") as app:
        (row,) = await pins(app)
        assert (row["kind"], row["name"], row["ref"], row["ends"]) == (
            "pin",
            "prod",
            "team/m0:v1",
            0,
        )
        status, told = await call(app, "DELETE", "/v1/pins?ref=team/m0:v1&name=other")
        assert (status, told["code"]) == (404, 3)
        assert (await call(app, "DELETE", "/v1/pins?ref=team/m0:v1&name=prod"))[0] == 200
        assert (await pull(app, "team/m1:v1"))["event"] == "done"


async def test_a_pin_follows_its_tag_and_a_digest_stays(tmp_path: Path, origin: str) -> None:
    async with agent(tmp_path, origin=origin) as app:
        old = (await pull(app, "team/m0:v1"))["digest"]
        await call(app, "POST", "/v1/pins", json={"ref": "team/m0:v1", "name": "prod"})
        files = {"weights.bin": random.Random(9).randbytes(4 * MB)}
        push(tmp_path / "origin", make_model(tmp_path / "new", files), "team/m0:v1")
        assert (await pull(app, "team/m0:v1"))["digest"] != old
        assert (await evict(app, "team/m0:v1"))[0] == 409
        assert (await evict(app, f"team/m0:v1@blake3:{old}"))[0] == 200


async def test_pins_and_holds_end(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path, origin=origin) as app:
        assert (await pull(app, "team/m0:v1", hold="svc", hold_s=50))["event"] == "done"
        wish = {"ref": "team/m0:v1", "name": "demo", "for_s": 100}
        assert (await call(app, "POST", "/v1/pins", json=wish))[0] == 200
        assert [row["kind"] for row in await pins(app)] == ["hold", "pin"]
        assert (await evict(app, "team/m0:v1"))[0] == 409
        now = time.time()
        monkeypatch.setattr("p2pcache.agent.jobs.claims.time.time", lambda: now + 70)
        assert [row["kind"] for row in await pins(app)] == ["pin"]
        assert (await pull(app, "team/m0:v1", hold="svc", hold_s=50))["event"] == "done"
        assert len(await pins(app)) == 2, "it was renewed"
        monkeypatch.setattr("p2pcache.agent.jobs.claims.time.time", lambda: now + 130)
        await app.claims._drop_ended()
        assert app.store.claims.all_claims() == []
        assert (await evict(app, "team/m0:v1"))[0] == 200


async def test_a_hold_ends_by_release_and_with_its_process(tmp_path: Path, origin: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as reader:
        async with agent(tmp_path, origin=origin) as app:
            lasts = {"hold": "job", "hold_pid": reader.pid, "hold_started": start_of(reader.pid)}
            assert (await pull(app, "team/m0:v1", **lasts))["event"] == "done"
            assert (await evict(app, "team/m0:v1"))[0] == 409
            reader.kill()
            reader.wait()
            assert await pins(app) == []
            assert (await evict(app, "team/m0:v1"))[0] == 200
            failed = await pull(app, "team/m1:v1", **lasts)
            assert failed["code"] == 2
            assert (await pull(app, "team/m1:v1", hold="svc"))["event"] == "done"
            assert (await call(app, "POST", "/v1/release", json={"name": "svc"}))[0] == 200
            status, told = await call(app, "POST", "/v1/release", json={"name": "svc"})
            assert (status, told["code"]) == (404, 3)
            assert (await evict(app, "team/m1:v1"))[0] == 200


async def test_no_namespace_has_a_say_in_anothers(tmp_path: Path, origin: str) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "x", {"w": b"x" * MB}), "other/m:v1")
    async with guarded(tmp_path, origin=origin) as app:
        everybody, team, other = (
            token(Scope.ADMIN, "*"),
            token(Scope.ADMIN, "team"),
            token(Scope.ADMIN, "other"),
        )
        async with over_tcp(app, everybody) as session:
            for ref in ("team/m0:v1", "other/m:v1"):
                assert (await ask(session, "POST", "/v1/pull", json={"ref": ref, "hold": "svc"}))[
                    0
                ] == 200
        async with over_tcp(app, other) as session:
            for method, path, body in (
                ("POST", "/v1/pins", {"json": {"ref": "team/m0:v1", "name": "mine"}}),
                ("DELETE", "/v1/pins?ref=team/m0:v1", {}),
                ("POST", "/v1/pull", {"json": {"ref": "team/m0:v1", "hold": "mine"}}),
                ("POST", "/v1/evict", {"json": {"ref": "team/m0:v1"}}),
                ("POST", "/v1/evict", {"json": {"to_bytes": 0}}),
            ):
                assert (await ask(session, method, path, **body))[0] == 403, (method, path)
            _, told = await ask(session, "GET", "/v1/pins")
            assert [row["ref"] for row in told["pins"]] == ["other/m:v1"]
            _, told = await ask(session, "POST", "/v1/release", json={"name": "svc"})
            assert [row["ref"] for row in told["released"]] == ["other/m:v1"]
        async with over_tcp(app, team) as session:
            _, told = await ask(session, "GET", "/v1/pins")
            assert [row["ref"] for row in told["pins"]] == ["team/m0:v1"]


async def test_a_model_of_two_namespaces_is_not_evicted_by_one(tmp_path: Path, origin: str) -> None:
    files = {"weights.bin": random.Random(0).randbytes(4 * MB)}
    push(tmp_path / "origin", make_model(tmp_path / "same", files), "other/same:v1")
    async with guarded(tmp_path, origin=origin) as app:
        async with over_tcp(app, token(Scope.ADMIN, "*")) as session:
            for ref in ("team/m0:v1", "other/same:v1"):
                await ask(session, "POST", "/v1/pull", json={"ref": ref})
        async with over_tcp(app, token(Scope.ADMIN, "team")) as session:
            status, told = await ask(session, "POST", "/v1/evict", json={"ref": "team/m0:v1"})
            assert (status, told["code"]) == (403, 4)


async def test_odd_claims_are_refused(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path, origin=origin) as app:
        status, told = await call(app, "POST", "/v1/pins", json={"ref": "team/m9:v1", "name": "x"})
        assert (status, told["code"]) == (404, 3)
        assert (await pull(app, "team/m0:v1"))["event"] == "done"
        for name in ("", "a b", "x" * 81, "../x"):
            status, _ = await call(
                app, "POST", "/v1/pins", json={"ref": "team/m0:v1", "name": name}
            )
            assert status == 400, name
        for odd in ({"hold": "a b"}, {"hold": "x", "hold_s": 1e9}, {"hold": "x", "hold_pid": 1}):
            assert (await pull(app, "team/m0:v1", **odd))["code"] == 2, odd
        monkeypatch.setattr(claims, "MAX_CLAIMS", 2)
        for number in range(2):
            app.store.claims.put_claim(claim(f"n{number}"))
        app.store.claims.put_claim(claim("n1"))
        with pytest.raises(Conflict, match="pins and holds"):
            app.store.claims.put_claim(claim("n2"))
        app.store.claims.put_claim(claim("n2")._replace(namespace="else"))


def claim(name: str) -> Claim:
    return Claim("hold", "team", name, str(Ref.parse("team/m0:v1")), "ab" * 32, 1.0, 0.0)


def test_a_number_used_again_is_another_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        started = start_of(child.pid)
        assert int(started) > 0
        assert claim("x")._replace(pid=child.pid, started=started).lasts(5.0)
        assert not claim("x")._replace(pid=child.pid, started="1").lasts(5.0)
        child.kill()
        child.wait()
    assert start_of(child.pid) == ""


async def test_names_are_shown_as_they_were_pushed(tmp_path: Path) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", {"a": b"1"}), "Team/Alpha:V1")
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await pull(app, "team/alpha:V1")
        async with asyncio.timeout(10):
            while app.store.written(Ref.parse("team/alpha:V1")) != "Team/Alpha:V1":
                await asyncio.sleep(0.02)
        wish = {"ref": "team/alpha:V1", "name": "prod"}
        _, made = await call(app, "POST", "/v1/pins", json=wish)
        _, told = await call(app, "GET", "/v1/pins")
        _, ended = await call(app, "DELETE", "/v1/pins?ref=team/alpha:V1")
        _, pruned = await call(app, "POST", "/v1/prune", json={"all": True, "dry_run": True})
        _, gone = await call(app, "POST", "/v1/evict", json={"ref": "team/alpha:V1"})
    rows = [made, *told["pins"], *ended["unpinned"]]
    rows += gone["evicted"]
    assert [row["ref"] for row in rows] == ["Team/Alpha:V1"] * 4
    assert pruned["removed"] == ["Team/Alpha:V1"]
