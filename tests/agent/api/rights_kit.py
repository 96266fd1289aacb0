"""Tokens, callers and an agent that checks them."""

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from p2pcache.agent.app import AgentApp
from p2pcache.core.protocol import tokens
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.protocol.tokens import EVERY, Scope
from tests.agent.kit import agent

KEY = Secret(b"t0ken-key-" * 4)
SIGNING = tokens.signing_key(KEY)


def write_key(path: Path) -> str:
    path.write_bytes(KEY.key + b"\n")
    path.chmod(0o600)
    return str(path)


def token(
    scope: Scope = Scope.PULL, *namespaces: str, name: str = "tester", now: float = 0.0,
    life_s: float = 600, key: Secret = SIGNING, token_id: str = "00ff",
) -> str:  # fmt: skip
    made = tokens.make(
        token_id=token_id, name=name, scope=scope, namespaces=namespaces or (EVERY,),
        now=now or time.time(), life_s=life_s,
    )  # fmt: skip
    return tokens.sign(key, made)


@contextlib.asynccontextmanager
async def guarded(tmp: Path, **settings: Any) -> AsyncIterator[AgentApp]:
    """An agent that listens on TCP too, and checks tokens of `KEY`."""
    more = {"api_listen": "127.0.0.1:0", "token_key_file": write_key(tmp / "token.key")}
    async with agent(tmp, **{**more, **settings}) as app:
        yield app


@contextlib.asynccontextmanager
async def over_tcp(app: AgentApp, text: str = "") -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {text}"} if text else {}
    async with aiohttp.ClientSession(
        f"http://{app.listeners.api_address}", headers=headers
    ) as session:
        yield session


async def ask(
    session: aiohttp.ClientSession, method: str, path: str, **more: Any
) -> tuple[int, Any]:
    """Status and body (JSON; of a stream the last event)."""
    async with session.request(method, path, **more) as answer:
        if "ndjson" in answer.content_type:
            import json

            return answer.status, json.loads((await answer.text()).splitlines()[-1])
        if "json" in answer.content_type:
            return answer.status, await answer.json()
        return answer.status, await answer.text()
