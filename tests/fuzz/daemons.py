"""The doors of running daemons: after any input they serve the next caller, and log no trace."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
from hypothesis import strategies as st

from p2pcache.agent.api.gate import ApiLimits
from p2pcache.agent.api.routes import ROUTES
from p2pcache.core.protocol import messages as m
from p2pcache.core.ratelimit import Rate
from p2pcache.io.peers.protocol import wire
from tests.agent.kit import agent, client
from tests.fuzz.doors import DIGEST, Door
from tests.fuzz.inputs import JSON, TEXTS, TOKENS, changed
from tests.io.peers import raw
from tests.io.peers.kit import QUICK, make_model, node
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import REF, publish, tracker

ANSWER_S = 30.0  # for any answer; a busy machine is slow, a daemon that hangs answers never
MODEL = make_model([262_144, 100, 300_000])

Try = Callable[[Any], Awaitable[None]]


class Traces(logging.Handler):
    """Keeps what was logged with a trace: a bug."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            if (
                record.name == "aiohttp.server"
            ):  # requests that are no HTTP; `io.log.setup` drops it, too
                return
            text = logging.Formatter().format(record)
            if record.name != "asyncio" or "tests/io/peers/raw.py" not in text:  # that is ours
                self.found.append(text)


def live(
    daemon: Callable[[Path], AbstractAsyncContextManager[Try]],
) -> Callable[[Path], "contextlib.AbstractContextManager[Callable[[Any], None]]"]:
    """A daemon on a loop of its own; each input is one run of that loop."""

    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Callable[[Any], None]]:
        traces = Traces()
        logging.getLogger().addHandler(traces)
        with asyncio.Runner() as runner:
            stack = contextlib.AsyncExitStack()
            attempt = runner.run(stack.enter_async_context(daemon(folder)))

            async def once(given: Any) -> None:
                async with asyncio.timeout(ANSWER_S):
                    await attempt(given)
                assert not traces.found, traces.found[0]

            try:
                yield lambda given: runner.run(once(given))
            finally:
                runner.run(stack.aclose())
                logging.getLogger().removeHandler(traces)

    return opened


FRAME = st.one_of(
    st.builds(
        lambda kind, flags, stream, a, b, payload: wire.HEADER.pack(kind, flags, stream, a, b, len(payload)) + payload,
        st.sampled_from([*wire.Kind, 0, 99, 255]), st.integers(0, 255), st.integers(0, 3), st.integers(0, 1 << 20),
        st.integers(0, 1 << 20), st.binary(max_size=120),
    ),
    st.binary(max_size=80),
    st.just(raw.join(MODEL)),
    st.builds(wire.request, st.integers(0, 2), st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)),
)  # fmt: skip
FRAMES = st.tuples(st.booleans(), st.lists(FRAME, max_size=8))


@contextlib.asynccontextmanager
async def peer_port(_: Path) -> AsyncIterator[Try]:
    """A node that serves: frames before the handshake, or after it; then an honest peer is served."""
    number = 10
    async with node(1, limits=QUICK) as server:
        server.swarm(MODEL, full=True)

        async def attempt(given: tuple[bool, list[bytes]]) -> None:
            nonlocal number
            known, frames = given
            number += 1
            peer = await (raw.joined(server, MODEL, number) if known else raw.connect(server))
            async with peer:
                await peer.send(*frames)
            async with await raw.joined(server, MODEL, number + (1 << 40)) as honest:
                await honest.send(wire.request(0, 1, 1, 1))
                assert (await honest.frame(wire.Kind.DATA)).payload == MODEL.chunks[1]

        yield attempt


@contextlib.asynccontextmanager
async def requester(_: Path) -> AsyncIterator[Try]:
    """A node that asks: its server says anything; then an honest server is joined."""
    number = 10
    async with node(2) as honest, node(1, limits=QUICK) as asker:
        honest.swarm(MODEL, full=True)
        port = asker.swarm(MODEL)

        async def attempt(given: tuple[bool, list[bytes]]) -> None:
            nonlocal number
            known, frames = given
            number += 1
            mine, over = number, asyncio.Event()

            async def behave(peer: raw.RawPeer) -> None:
                with contextlib.suppress(Exception):
                    if known:
                        await raw.serve_model(peer, MODEL, mine)
                    await peer.send(*frames)
                    await asyncio.sleep(0.01)
                over.set()

            async with raw.evil_server(behave) as address:
                asker.net.dial(MODEL.layout.digest, mine, address)
                asker.net.request(MODEL.layout.digest, mine, mine, 0)
                await over.wait()
            await port.end(mine)
            assert not port.store.have, "nothing is believed that the manifest doesn't prove"

        yield attempt
        asker.net.dial(MODEL.layout.digest, honest.number, honest.address)
        await port.until(lambda: any(one[:2] == ("joined", 2) for one in port.told))


CALLS = st.tuples(
    st.sampled_from([(route.method, route.path) for route in ROUTES] + [("POST", "/nowhere"), ("PUT", "/v1/pull")]),
    st.one_of(
        st.fixed_dictionaries({}, optional={
            "ref": st.one_of(TEXTS, JSON), "digest": st.one_of(TEXTS, JSON),
            "include": st.one_of(st.lists(TEXTS, max_size=3), JSON), "replicas": JSON, "load": JSON, "runs": JSON,
            "dry_run": JSON, "seconds": st.just(0), "level": JSON,
        }).map(lambda body: json.dumps(body).encode()),
        st.sampled_from(TOKENS), st.binary(max_size=40),
    ),
    st.dictionaries(st.sampled_from(["ref", "model", "limit"]), TEXTS, max_size=2),
)  # fmt: skip


@contextlib.asynccontextmanager
async def api(folder: Path) -> AsyncIterator[Try]:
    """An agent's calls with any body and query: an answer in its own words, never a 500."""
    much = (Rate(1e9, 1e9), Rate(1e9, 1e9))
    (folder / "origin").mkdir(exist_ok=True)
    publish(folder / "origin")
    limits = ApiLimits(cheap=much, dear=much)
    origin = (folder / "origin").as_uri()
    async with agent(folder, origin=origin, limits=limits) as app, client(app) as session:

        async def attempt(given: tuple[tuple[str, str], bytes, dict[str, str]]) -> None:
            (method, path), body, query = given
            path = path.replace("{manifest}", DIGEST).replace(
                "{blob}", query.get("ref", "x").encode().hex() or "0"
            )
            with contextlib.suppress(TimeoutError):
                async with (
                    asyncio.timeout(2),  # a pull may wait for what nobody has
                    session.request(method, path, data=body, params=query) as answer,
                ):
                    text = await answer.read()
                    assert answer.status in {
                        200,
                        400,
                        403,
                        404,
                        405,
                        409,
                        413,
                        415,
                        422,
                        429,
                        502,
                        503,
                        504,
                        507,
                    }, (given, text)
            async with session.get("/healthz") as answer:
                assert answer.status == 200

        yield attempt


SAID = st.lists(
    st.one_of(
        changed([
            m.Heartbeat(1, (m.SwarmState(DIGEST, 4, b"\1"),)), m.Exit(DIGEST),
            m.Heartbeat(ended=(m.EndedPull(DIGEST, "a:b", 5, 1.5, 9, (1, 2, 3)),)),
            m.Enter(m.SwarmState(DIGEST, 4, b"\1", credit=1)), m.Ask(1, "resolve", "team/m:v1"),
            m.Ask(2, "manifest", DIGEST), m.Ask(3, "locate", "a:b"), m.Ask(4, "warm", "{}"),
            m.Ask(5, "tag_put", "{}"), m.Ask(6, "moved", "a:b"), m.Blame(1, DIGEST, 0), m.Leaving(),
        ]),
        st.sampled_from(TOKENS),
    ),
    max_size=6,
)  # fmt: skip


@contextlib.asynccontextmanager
async def member_port(folder: Path) -> AsyncIterator[Try]:
    """A tracker whose member says anything; then it answers an honest one."""
    (folder / "origin").mkdir(exist_ok=True)
    publish(folder / "origin")
    number = 10
    async with tracker(folder / "origin") as app, aiohttp.ClientSession() as http:

        async def attempt(given: list[bytes]) -> None:
            nonlocal number
            number += 1
            async with FakeAgent(number).member(app.address) as member:
                for data in given:
                    with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                        await member.send_raw(data)
            async with http.get(f"http://{app.address}/v1/status") as answer:
                assert answer.status == 200
                await answer.read()

        yield attempt
        async with FakeAgent(9).member(app.address) as honest:
            assert (await honest.ask("resolve", str(REF))).data


DAEMONS = [
    Door("peer port", FRAMES, live(peer_port)),
    Door("requester", FRAMES, live(requester)),
    Door("API of the agent", CALLS, live(api)),
    Door("member port of the tracker", SAID, live(member_port)),
]
