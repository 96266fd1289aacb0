"""Calls about the pool: what a client of one namespace sees of it, and what the tracker is asked."""

from pathlib import Path
from typing import Any

import msgspec

from p2pcache.agent.api.queries import Queries
from p2pcache.core.protocol.tokens import Scope
from tests.agent.api.rights_kit import ask, guarded, over_tcp, token


async def test_a_client_sees_and_changes_what_is_kept_of_its_namespace(
    tmp_path: Path, monkeypatch: Any
) -> None:
    asked: list[tuple[str, str]] = []

    async def tracker(_: Queries, what: str, text: str = "") -> bytes:
        asked.append((what, text))
        rows = [{"ref": f"{space}/m:v1", "namespace": space} for space in ("team", "else")]
        return msgspec.json.encode({"keeps": rows, "drains": [{"node": "aa"}]})

    monkeypatch.setattr(Queries, "ask_tracker", tracker)
    async with guarded(tmp_path) as app:
        async with over_tcp(app, token(Scope.ADMIN, "team")) as session:
            _, body = await ask(session, "GET", "/v1/keeps")
            assert body == {"keeps": [{"ref": "team/m:v1", "namespace": "team"}]}
            wish = {"ref": "team/m:v1", "copies": 2}
            assert (await ask(session, "POST", "/v1/keeps", json=wish))[0] == 200
            sent = msgspec.json.decode(asked[-1][1])
            assert (asked[-1][0], sent["ref"], sent["copies"]) == ("keep", "team/m:v1", 2)
            before = len(asked)
            for method, path, more in (
                ("POST", "/v1/keeps", {"json": wish | {"ref": "else/m:v1"}}),
                ("DELETE", "/v1/keeps?ref=else/m:v1", {}),
                ("POST", "/v1/drain", {"json": {"node": "n1"}}),
            ):
                assert (await ask(session, method, path, **more))[0] == 403
            assert len(asked) == before, "the tracker wasn't asked"
            await ask(session, "DELETE", "/v1/keeps?ref=team/m:v1")
            assert msgspec.json.decode(asked[-1][1]) == {"ref": "team/m:v1", "off": True}
        async with over_tcp(app, token(Scope.ADMIN, "*")) as session:
            _, body = await ask(session, "GET", "/v1/keeps")
            assert len(body["keeps"]) == 2
            assert body["drains"] == [{"node": "aa"}]
