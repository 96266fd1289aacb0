"""An agent inside a command: what a pull without a daemon gets, and what it doesn't import."""

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from p2pcache.agent.embedded import run_embedded, run_lone
from p2pcache.agent.fetching.lone import LoneAgent
from p2pcache.agent.settings import AgentSettings
from p2pcache.core.protocol.handshake import Challenge, Secret
from p2pcache.errors import Lost, NotFound
from p2pcache.ids import Ref
from p2pcache.io.http.client import AgentClient
from p2pcache.io.models.store import Store
from p2pcache.io.peers.net import PeerNet
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.wire import Kind
from tests.agent.kit import make_model, push
from tests.io.peers.raw import RawPeer, hello

DATA = random.Random(7).randbytes(3_000_000)
REF = Ref.parse("team/m:v1")
OPTIONS: dict[str, Any] = {
    "force_generation": False, "include": (), "exclude": (), "background": False, "hold": "",
    "hold_s": 0.0, "hold_pid": 0,
}  # fmt: skip
UNUSED = ("aiohttp", "prometheus_client", "OpenSSL", "cryptography", "psutil")


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    push(tmp_path / "origin", make_model(tmp_path / "model", {"w.bin": DATA}), str(REF))
    return AgentSettings(
        cache_dir=str(tmp_path / "cache"), origin=(tmp_path / "origin").as_uri(), min_free_bytes=0,
    )  # fmt: skip


def test_a_lone_pull_tells_the_same_as_a_call_of_the_api(
    settings: AgentSettings, tmp_path: Path
) -> None:
    with run_lone(settings) as pull:
        told = list(pull(REF, **OPTIONS))
    whole = replace(
        settings, cache_dir=str(tmp_path / "whole"), socket=str(tmp_path / "agent.sock")
    )
    with run_embedded(whole) as socket:
        by_api = list(AgentClient(f"unix://{socket}").pull(str(REF), **OPTIONS))
    assert [told[0]["event"], told[-1]["event"]] == ["resolved", "done"]
    assert {one["event"] for one in told} == {one["event"] for one in by_api}
    assert told[-1].keys() == by_api[-1].keys()
    done = told[-1]
    assert done["bytes_origin"] == len(DATA)
    assert (Path(done["models_dir"]) / done["path"] / "w.bin").read_bytes() == DATA


def test_its_errors_come_as_they_are(settings: AgentSettings) -> None:
    with run_lone(settings) as pull, pytest.raises(NotFound, match="team/other"):
        list(pull(Ref.parse("team/other:v1"), **OPTIONS))


def test_leaving_the_agent_ends_a_pull_and_the_next_one_goes_on(settings: AgentSettings) -> None:
    slow = replace(settings, origin_bytes_per_s=500_000, shutdown_s=1.0)
    with run_lone(slow) as pull:
        events = pull(REF, **OPTIONS)
        assert next(events)["event"] == "resolved"
        events.close()
    with run_lone(settings) as pull:
        done = list(pull(REF, **OPTIONS))[-1]
    assert done["event"] == "done"
    assert done["bytes_origin"] > len(DATA) / 2, "the first one would have taken six seconds"


def test_a_hold_is_kept(settings: AgentSettings) -> None:
    for _ in range(2):
        with run_lone(settings) as pull:
            assert list(pull(REF, **OPTIONS | {"hold": "mine"}))[-1]["event"] == "done"
    store = Store.open(Path(settings.cache_dir), min_free_bytes=0)
    assert [claim.name for claim in store.claims.all_claims()] == ["mine"]
    store.close()


async def test_nobody_joins_a_lone_agent(
    settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port is known to each user of the host, and the empty key to all."""
    bound: list[tuple[str, int]] = []

    async def start(net: PeerNet, host: str, port: int) -> tuple[str, int]:
        bound.append(await listen(net, host, port))
        return bound[0]

    listen = PeerNet.start
    monkeypatch.setattr(PeerNet, "start", start)
    async with LoneAgent(settings).running():
        async with RawPeer(*await asyncio.open_connection(*bound[0])) as peer:
            peer.challenge = wire.parse_greeting(await peer.frame(Kind.CHALLENGE), Challenge)
            await peer.send(hello(peer.challenge, 7, Secret(b"")))
            assert Kind.WELCOME not in await peer.is_dropped()


def test_an_agent_that_has_died_is_told_so(settings: AgentSettings) -> None:
    with run_lone(settings) as pull:
        pass
    with pytest.raises(Lost, match="has ended; run the command again"):
        list(pull(REF, **OPTIONS))


def test_a_lone_agent_imports_nothing_that_it_doesnt_use() -> None:
    code = "import sys, p2pcache.agent.fetching.lone, p2pcache.io.origins.s3.origin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [name for name in UNUSED if name in done.stdout.split()] == []
