"""A cluster of members that say what real agents would say: real connections and messages, no bytes of models."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

from p2pcache.core import bitset
from p2pcache.core.protocol import messages as m
from tests.tracker.fake_agent import FakeAgent

RUNS = 64  # of each model
GB = 10**9


@dataclass
class Held:
    """What a node has of a model, and whether it fetches the rest."""

    label: str
    total_bytes: int
    pulled: bool = False
    peers: int = 0
    origin: int = 0


class Resident(FakeAgent):
    """A member with a name and a place that holds some models and fetches others."""

    def __init__(self, node: int, name: str, rack: str = "") -> None:
        super().__init__(node)
        self.name, self.rack = name, rack
        self.held: dict[str, Held] = {}
        self._ended: list[m.EndedPull] = []  # to be told with the next heartbeat
        self._fresh: set[str] = set()  # models of which it is to be told, too

    def hold(self, digest: str, held: Held, share: float = 1.0) -> None:
        """Have a part of a model; told with the announcement or the next heartbeat."""
        self.runs[digest], self.held[digest] = RUNS, held
        self.have[digest] = bitset.full(round(RUNS * share))

    def state(self, digest: str) -> m.SwarmState:
        held, have = self.held[digest], self.have[digest]
        complete = have == bitset.full(RUNS)
        return m.SwarmState(
            digest, RUNS, b"" if complete else bitset.to_bytes(have, RUNS), complete,
            label=held.label, total_bytes=held.total_bytes, taken=(held.peers, held.origin, 0),
            pulled=held.pulled and not complete,
        )  # fmt: skip

    async def announce(self) -> None:
        states = tuple(self.state(digest) for digest in self.runs)
        await self.send(m.Announce(self.address, "0.1", self.rack, "", states, self.name))

    async def beat(self) -> None:
        active = {digest for digest, held in self.held.items() if held.pulled} | self._fresh
        ended, self._fresh, self._ended = tuple(self._ended), set(), []
        states = tuple(self.state(digest) for digest in sorted(active))
        await self.send(m.Heartbeat(3, states, 900 * GB, 50 * GB * len(self.runs), ended))

    def advance(self, digest: str, runs: int = 1) -> None:
        """Get some more runs of a model that it fetches, nine tenths of them from peers."""
        held, before = self.held[digest], self.have[digest].bit_count()
        after = min(RUNS, before + runs)
        came = held.total_bytes * (after - before) // RUNS
        self.have[digest] = bitset.full(after)
        held.peers, held.origin = held.peers + came * 9 // 10, held.origin + came // 10
        if after == RUNS:
            self.end(digest, 0)

    def end(self, digest: str, code: int) -> None:
        """A pull ends; told with the next heartbeat."""
        held = self.held[digest]
        held.pulled = False
        self._fresh.add(digest)
        taken = (held.peers, held.origin, 0)
        self._ended.append(m.EndedPull(digest, held.label, code, 42.5, held.total_bytes, taken))


def digest_of(number: int) -> str:
    """Of a model by its number."""
    return f"{number:08x}" * 8


def label_of(number: int) -> str:
    """Of a model by its number."""
    return f"team-{number % 5}/model-{number}:v1"


def size_of(number: int) -> int:
    """Bytes of a model by its number."""
    return (number % 40 + 1) * GB


def residents(nodes: int, models: int, seed: int = 1) -> list[Resident]:
    """Nodes that hold some of so many models, a tenth of them fetching one more."""
    dice = random.Random(seed)
    found = []
    for number in range(1, nodes + 1):
        one = Resident(number, f"gpu-node-{number}.cluster.example", f"rack-{number % 8}")
        for model in dice.sample(range(1, models + 1), max(1, models // 8)):
            held = Held(label_of(model), size_of(model), peers=GB, origin=GB // 9)
            one.hold(digest_of(model), held)
        if number % 10 == 1:
            model = number % 3 + 1
            held = Held(label_of(model), size_of(model), pulled=True)
            one.hold(digest_of(model), held, 0.25)
        found.append(one)
    return found


@contextlib.asynccontextmanager
async def members(address: str, crowd: list[Resident], beat_s: float = 2.0) -> AsyncIterator[None]:
    """All of them are members for the length of the block, and get on with what they fetch."""

    async def live(one: Resident) -> None:
        await asyncio.sleep(random.Random(one.node).uniform(0, beat_s))
        while True:
            for digest in [digest for digest, held in one.held.items() if held.pulled]:
                one.advance(digest)
            await one.beat()
            await asyncio.sleep(beat_s)

    async with contextlib.AsyncExitStack() as stack:
        for one in crowd:
            await stack.enter_async_context(one.member(address))
        async with asyncio.TaskGroup() as tasks:
            living = [tasks.create_task(live(one)) for one in crowd]
            try:
                yield
            finally:
                for task in living:
                    task.cancel()
