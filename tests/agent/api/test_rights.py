"""Rights: every route, every scope, every listener."""

import asyncio
import logging
import os
import random
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.api.handlers import Api
from p2pcache.agent.api.rights import Caller, seen_model
from p2pcache.agent.api.routes import BY_CALL, Rule
from p2pcache.core.protocol import tokens
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.protocol.tokens import Rights, Scope
from p2pcache.errors import UsageError
from tests.agent.api.rights_kit import KEY, ask, guarded, over_tcp, token
from tests.agent.kit import agent, client, make_model, pull, push

HEX = "ab" * 32
DATA = random.Random(5).randbytes(600_000)

# What each route is asked with, in namespace "team", by somebody who wants it done.
CALLS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("GET", "/healthz"): ("/healthz", {}),
    ("GET", "/readyz"): ("/readyz", {}),
    ("GET", "/metrics"): ("/metrics", {}),
    ("GET", "/openapi.json"): ("/openapi.json", {}),
    ("POST", "/v1/pull"): ("/v1/pull", {"json": {"ref": "team/m:v1"}}),
    ("POST", "/v1/load"): ("/v1/load", {"json": {"ref": "team/m:v1"}}),
    ("POST", "/v1/demand"): ("/v1/demand", {"json": {"load": "0" * 32, "runs": []}}),
    ("GET", "/v1/models"): ("/v1/models", {}),
    ("GET", "/v1/model"): ("/v1/model?ref=team/m:v1", {}),
    ("GET", "/v1/signatures"): ("/v1/signatures?ref=team/m:v1", {}),
    ("POST", "/v1/signatures"): (
        "/v1/signatures",
        {"json": {"ref": "team/m:v1", "digest": HEX, "signature": "nonsense"}},
    ),
    ("GET", "/v1/locate"): ("/v1/locate?ref=team/m:v1", {}),
    ("GET", "/v1/explain"): ("/v1/explain?ref=team/m:v1", {}),
    ("GET", "/v1/pulls"): ("/v1/pulls", {}),
    ("GET", "/v1/status"): ("/v1/status", {}),
    ("GET", "/v1/history"): ("/v1/history", {}),
    ("POST", "/v1/manifests"): ("/v1/manifests", {"data": b"nonsense"}),
    ("PUT", "/v1/blobs/{manifest}/{blob}"): (f"/v1/blobs/{HEX}/{HEX}", {"data": b"x"}),
    ("POST", "/v1/import"): (
        "/v1/import",
        {"json": {"ref": "team/m:v2", "url": "file:///nowhere"}},
    ),
    ("POST", "/v1/push"): ("/v1/push", {"json": {"ref": "team/m:v2", "digest": HEX}}),
    ("DELETE", "/v1/model"): ("/v1/model?ref=team/absent:v1", {}),
    ("POST", "/v1/verify"): ("/v1/verify", {"json": {"ref": "team/absent:v1"}}),
    ("POST", "/v1/prune"): ("/v1/prune", {"json": {"dry_run": True}}),
    ("GET", "/v1/pins"): ("/v1/pins", {}),
    ("POST", "/v1/pins"): ("/v1/pins", {"json": {"ref": "team/absent:v1", "name": "x"}}),
    ("DELETE", "/v1/pins"): ("/v1/pins?ref=team/absent:v1", {}),
    ("POST", "/v1/release"): ("/v1/release", {"json": {"name": "nobody"}}),
    ("POST", "/v1/evict"): ("/v1/evict", {"json": {"ref": "team/absent:v1"}}),
    ("POST", "/v1/warm"): ("/v1/warm", {"json": {"ref": "team/absent:v1"}}),
    ("POST", "/v1/cancel"): ("/v1/cancel", {"json": {"ref": "team/absent:v1"}}),
    ("POST", "/v1/linger"): ("/v1/linger", {"json": {"digest": HEX, "seconds": 0}}),
    ("POST", "/v1/pressure"): ("/v1/pressure", {"json": {"level": 0.5}}),
    ("GET", "/v1/room"): ("/v1/room", {}),
    ("GET", "/v1/cluster/room"): ("/v1/cluster/room", {}),
    ("GET", "/v1/cluster/models"): ("/v1/cluster/models", {}),
    ("GET", "/v1/nodes"): ("/v1/nodes", {}),
    ("GET", "/v1/keeps"): ("/v1/keeps", {}),
    ("POST", "/v1/keeps"): ("/v1/keeps", {"json": {"ref": "team/absent:v1", "copies": 1}}),
    ("DELETE", "/v1/keeps"): ("/v1/keeps?ref=team/absent:v1", {}),
    ("POST", "/v1/drain"): ("/v1/drain", {"json": {"node": "nobody"}}),
    ("GET", "/v1/cluster/pulls"): ("/v1/cluster/pulls", {}),
    ("GET", "/v1/cluster/history"): ("/v1/cluster/history", {}),
}


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    for ref, seed in (("team/m:v1", b"1"), ("other/secret:v1", b"2")):
        model = make_model(tmp_path / ref.partition("/")[0], {"w": DATA, "seed": seed})
        push(tmp_path / "origin", model, ref)
    return tmp_path / "origin"


def routes(api: Api) -> set[tuple[str, str]]:
    return {
        (route.method, route.resource.canonical)
        for route in api.application("operator").router.routes()
        if route.resource is not None and route.method != "HEAD"
    }


async def test_every_route_is_in_the_table_and_in_this_test(tmp_path: Path) -> None:
    async with agent(tmp_path) as app:
        assert routes(app.api) == set(BY_CALL) == set(CALLS)


def allowed(rule: Rule, scope: Scope | None, *, everywhere: bool, ours: bool) -> bool:
    """What the table means, said another way."""
    if rule.scope is None:
        return True
    if scope is None or list(Scope).index(scope) < list(Scope).index(rule.scope):
        return False
    if rule.where == "node":
        return everywhere
    return everywhere or ours or rule.where == "seen"


HOLDERS = [
    (None, ()), (Scope.PULL, ("team",)), (Scope.PULL, ("else",)), (Scope.PULL, ("*",)),
    (Scope.PUSH, ("team", "else")), (Scope.PUSH, ("else",)), (Scope.ADMIN, ("team",)),
    (Scope.ADMIN, ("else",)), (Scope.ADMIN, ("*",)),
]  # fmt: skip


async def test_every_right_on_every_route(tmp_path: Path, origin: Path) -> None:
    async with guarded(tmp_path, origin=origin.as_uri()) as app:
        for scope, names in HOLDERS:
            text = token(scope, *names) if scope else ""
            async with over_tcp(app, text) as session:
                for key, (path, body) in CALLS.items():
                    status, answer = await ask(session, key[0], path, **body)
                    ought = allowed(
                        BY_CALL[key].rule, scope, everywhere="*" in names, ours="team" in names
                    )
                    assert (status != 403) == ought, (scope, names, key, status, answer)
                    if status == 403:
                        assert answer["code"] == 4
                        assert "\n" not in answer["message"]


async def test_without_a_token_tcp_names_the_remedy(tmp_path: Path) -> None:
    async with guarded(tmp_path) as app, over_tcp(app) as session:
        status, answer = await ask(session, "GET", "/v1/models")
        assert (status, answer["code"]) == (403, 4)
        assert "--token-file" in answer["message"]
        assert (await ask(session, "GET", "/readyz?model=team/m:v1"))[0] == 403


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (token(now=time.time() - 1000, life_s=500), "expired"),
        (token(now=time.time() + 1e6), "clock"),  # the whole suite may take half an hour
        (token(key=tokens.signing_key(Secret(b"x" * 32))), "another key"),
        (token(key=KEY), "another key"),  # signed with the file's key itself, not the derived one
        (token()[:-1], "signature"),
        (token().replace("p2pc1", "p2pc2"), "release"),
        ("nonsense", "isn't a token"),
        ("a" * 5000, "isn't a token"),
    ],
)
async def test_bad_tokens(tmp_path: Path, text: str, why: str) -> None:
    async with guarded(tmp_path) as app, over_tcp(app, text) as session:
        for path in ("/v1/models", "/healthz"):
            status, answer = await ask(session, "GET", path)
            assert (status, answer["code"]) == (403, 4)
            assert why in answer["message"]
            assert text not in answer["message"]


async def test_basic_authorization_is_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path) as app, over_tcp(app) as session:
        headers = {"Authorization": "Basic cm9vdDpyb290"}
        assert (await ask(session, "GET", "/v1/models", headers=headers))[0] == 403


async def test_the_cluster_key_signs_where_there_is_no_token_key(tmp_path: Path) -> None:
    key_file = tmp_path / "cluster.key"
    key_file.write_bytes(KEY.key)
    key_file.chmod(0o600)
    settings = {"token_key_file": "", "cluster_key_file": str(key_file)}
    async with guarded(tmp_path, **settings) as app, over_tcp(app, token()) as session:
        assert (await ask(session, "GET", "/v1/models"))[0] == 200


async def test_no_key_no_tcp(tmp_path: Path) -> None:
    for settings in (
        {"api_listen": "127.0.0.1:0"},
        {"api_listen": "0.0.0.0:0", "insecure": True},
    ):
        with pytest.raises(UsageError, match="token-key-file"):
            async with agent(tmp_path, **settings):
                pass
    async with agent(tmp_path, api_listen="127.0.0.1:0", insecure=True) as app:
        async with over_tcp(app) as session:
            assert (await ask(session, "GET", "/v1/models"))[0] == 200
        async with over_tcp(app, token()) as session:
            status, answer = await ask(session, "GET", "/v1/models")
            assert status == 403
            assert "takes no tokens" in answer["message"]


# -- the sockets ---------------------------------------------------------------------------------


async def test_root_on_the_client_socket_may_pull_and_no_more(tmp_path: Path, origin: Path) -> None:
    path = str(tmp_path / "client.sock")
    async with guarded(tmp_path, client_socket=path, origin=origin.as_uri()) as app:
        async with client(app, path=path) as session:
            for text in ("", token(Scope.ADMIN)):
                headers = {"Authorization": f"Bearer {text}"} if text else {}
                for key, (target, body) in CALLS.items():
                    status, answer = await ask(session, key[0], target, headers=headers, **body)
                    ought = allowed(BY_CALL[key].rule, Scope.PULL, everywhere=True, ours=True)
                    assert (status != 403) == ought, (key, status, answer)
                    if status == 403:
                        assert answer["message"].startswith("this socket is for pulling only")


async def test_a_token_on_the_client_socket_chooses_the_namespaces(
    tmp_path: Path, origin: Path
) -> None:
    path = str(tmp_path / "client.sock")
    settings = {"client_socket": path, "client_namespaces": "team, library"}
    async with guarded(tmp_path, origin=origin.as_uri(), **settings) as app:
        async with client(app, path=path) as session:

            async def code(ref: str, text: str = "") -> int:
                headers = {"Authorization": f"Bearer {text}"} if text else {}
                _, end = await ask(session, "POST", "/v1/pull", json={"ref": ref}, headers=headers)
                return int(end.get("code", 0))

            assert await code("team/m:v1") == 0
            assert await code("other/secret:v1") == 4
            assert await code("other/secret:v1", token(Scope.PULL, "other")) == 0
            assert await code("team/m:v1", token(Scope.PULL, "other")) == 4
            _, answer = await ask(session, "GET", "/v1/models")
            assert [row["ref"] for row in answer["models"]] == ["team/m:v1"]


def test_a_bad_namespace_setting_is_refused(tmp_path: Path) -> None:
    from p2pcache.agent.api.listeners import Listeners
    from p2pcache.agent.settings import AgentSettings

    for wrong in ("", "../x", "a;b"):
        with pytest.raises(UsageError, match="namespace"):
            Listeners(AgentSettings(client_namespaces=wrong))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")
async def test_the_operators_socket_knows_its_callers(tmp_path: Path) -> None:
    """Even where somebody opened the socket file to everybody."""
    for folder in tmp_path.parents[:3]:  # pytest's own are closed to others
        folder.chmod(folder.stat().st_mode | 0o011)
    tmp_path.chmod(0o711)
    async with guarded(tmp_path) as app:
        path = Path(app.settings.socket)
        path.chmod(0o666)
        group = path.stat().st_gid

        async def status_of(uid: int, gid: int, groups: list[int], text: str = "") -> int:
            return await asyncio.to_thread(_ask_as, str(path), uid, gid, groups, text)

        assert await status_of(0, 0, []) == 200
        assert await status_of(12345, group, []) == 200  # the socket's group
        assert await status_of(12345, 999, [7, group]) == 200  # ... as a supplementary group
        assert await status_of(12345, 999, [7]) == 403
        assert await status_of(12345, 999, [7], token(Scope.ADMIN)) == 200
        assert await status_of(0, 0, [], token(Scope.PULL, "x")) == 403  # a token decides


def _ask_as(path: str, uid: int, gid: int, groups: list[int], text: str) -> int:
    """An administrative call by a child with these ids; its HTTP status."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(30)
                sock.connect(path)
                bearer = f"Authorization: Bearer {text}\r\n" if text else ""
                body = '{"dry_run": true}'
                sock.sendall(
                    f"POST /v1/prune HTTP/1.1\r\nHost: a\r\n{bearer}Content-Length: {len(body)}\r\n"
                    f"Connection: close\r\n\r\n{body}".encode()
                )
                status = int(sock.recv(100).split()[1])
            os.write(writing, struct.pack("i", status))
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    data = os.read(reading, 4)
    os.close(reading)
    return int(struct.unpack("i", data)[0]) if data else -1


# -- namespaces ----------------------------------------------------------------------------------


async def test_lists_show_allowed_models_only(tmp_path: Path, origin: Path) -> None:
    async with guarded(tmp_path, origin=origin.as_uri()) as app:
        await pull(app, "team/m:v1")
        await pull(app, "other/secret:v1")
        async with over_tcp(app, token(Scope.PULL, "team")) as session:
            _, models = await ask(session, "GET", "/v1/models")
            _, history = await ask(session, "GET", "/v1/history")
            for text in (str(models), str(history)):
                assert "team/m" in text
                assert "secret" not in text
            assert "secret" not in str(await ask(session, "GET", "/v1/status"))


async def test_a_digest_is_no_key_to_another_namespace(tmp_path: Path, origin: Path) -> None:
    async with guarded(tmp_path, origin=origin.as_uri()) as app:
        secret = (await pull(app, "other/secret:v1"))["digest"]
        ours = (await pull(app, "team/m:v1"))["digest"]
        async with over_tcp(app, token(Scope.ADMIN, "team")) as session:
            for ref in (f"team/m:v1@blake3:{secret}", f"team/fresh@blake3:{secret}"):
                for method, path, body in (
                    ("POST", "/v1/pull", {"json": {"ref": ref}}),
                    ("GET", f"/v1/model?ref={ref}", {}),
                    ("DELETE", f"/v1/model?ref={ref}", {}),
                    ("POST", "/v1/verify", {"json": {"ref": ref}}),
                ):
                    status, answer = await ask(session, method, path, **body)
                    assert status in (403, 404), (method, ref, answer)
                    assert answer["code"] in (3, 4)
            good = f"team/m:v1@blake3:{ours}"
            assert (await ask(session, "POST", "/v1/pull", json={"ref": good}))[1][
                "event"
            ] == "done"
        assert (await pull(app, "other/secret:v1"))["bytes_origin"] == 0  # still here


async def test_a_model_with_names_in_two_namespaces_isn_t_removed_by_one(
    tmp_path: Path, origin: Path
) -> None:
    push(origin, tmp_path / "other", "team/same:v1")
    async with guarded(tmp_path, origin=origin.as_uri()) as app:
        done = await pull(app, "other/secret:v1")
        await pull(app, "team/same:v1")
        async with over_tcp(app, token(Scope.ADMIN, "team")) as session:
            by_digest = f"/v1/model?ref=team/same:v1@blake3:{done['digest']}"
            assert (await ask(session, "DELETE", by_digest))[0] == 403
            _, models = await ask(session, "GET", "/v1/models")
            assert "secret" not in str(models)
            assert (await ask(session, "DELETE", "/v1/model?ref=team/same:v1"))[0] == 200
        assert (await pull(app, "other/secret:v1"))["bytes_origin"] == 0


# -- the audit log -------------------------------------------------------------------------------


async def test_audit_lines(
    tmp_path: Path, origin: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A quiet log doesn't lose the record.
    monkeypatch.setattr(logging.getLogger("p2pcache"), "level", logging.ERROR)
    text = token(Scope.ADMIN, "*", name="ops")
    async with guarded(tmp_path, origin=origin.as_uri()) as app:
        async with over_tcp(app, text) as session:
            await ask(session, "POST", "/v1/pull", json={"ref": "team/m:v1"})
            await ask(session, "POST", "/v1/pull", json={"ref": "team/absent:v1"})
            await ask(session, "POST", "/v1/verify", json={"ref": "team/m:v1"})
            await ask(session, "DELETE", "/v1/model?ref=team/m:v1")
            await ask(session, "POST", "/v1/prune", json={})
        async with over_tcp(app, token(Scope.PULL, "x", name="nosy")) as session:
            await ask(session, "POST", "/v1/pull", json={"ref": "team/m:v1"})
    lines = [r.__dict__["audit"] for r in caplog.records if r.name == "p2pcache.audit"]
    assert [(line["action"], line["result"]) for line in lines] == [
        ("pull", "ok"), ("pull", "failed"), ("verify", "ok"), ("rm", "ok"), ("prune", "ok"),
        ("call", "refused"),
    ]  # fmt: skip
    ok, failed, *_, refused = lines
    assert ok["who"].startswith("token=ops id=00ff ip=127.0.0.1")
    assert (ok["model"], ok["bytes"]) == ("team/m:v1", 600_001)
    assert ok["seconds"] >= 0
    assert failed["code"] == 3
    assert refused["who"].startswith("token=nosy")
    assert refused["call"] == "POST /v1/pull"
    assert text not in caplog.text


def test_a_model_of_several_namespaces_shows_each_caller_its_own_names() -> None:
    row: dict[str, object] = {
        "ref": "qwen/big:v1", "namespace": "qwen", "name": "big", "tags": ["v1", "prod"], "bytes": 7,
        "refs": ["qwen/big:v1", "chat/bot:prod"], "spellings": {"qwen/big": "Qwen/Big", "chat/bot": "Chat/Bot"},
    }  # fmt: skip
    mine = Caller("token=ci", "ci", Rights(Scope.PULL, ("chat",)), "api")
    told = seen_model(mine, row)
    assert told == {
        "ref": "chat/bot:prod", "namespace": "chat", "name": "bot", "tags": ["prod"], "bytes": 7,
        "refs": ["chat/bot:prod"], "spellings": {"chat/bot": "Chat/Bot"},
    }  # fmt: skip
    assert seen_model(Caller("token=x", "x", Rights(Scope.PULL, ("other",)), "api"), row) == {}
